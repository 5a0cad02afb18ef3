-- Slots in flight. The string is the latest id or release, the id from which on every slot is known, and
-- entries of sixteen bytes (id, end of the hold, number of slots), by id. An entry whose hold is over has
-- expired; one of no slots is a tombstone, with the instant of the release. Both are kept for
-- RELEASE_MEMORY. The string is read and written whole: any slot may end at any time.
--
-- Slots that a call takes are kept apart until they are written. A state is {used, last, entries from
-- before, entries of this call, key, tag, complete from}. Slots in flight are one state under all limits
-- in flight.
--
-- Terms: hold, amount, cost. As of a log, a state is a table and its key is read and written here.

local SLOT, RELEASE_MEMORY, MAX_EXPIRED, MAX_SLOTS = 16, 60000000, 1024, 20000
local pick = string.sub

local function terms(text, at)
  return unpack_from('>I7I7I7', text, at)
end

local function fresh(key, tag)
  return {0, 0, '', '', key, tag, 0}
end

-- Calls `visit(id, until_when, count, offset)` for each of some slots.
local function walk(slots, visit)
  for offset = 1, #slots, SLOT do
    local id, until_when, count = unpack_from('>I7I7I2', slots, offset)
    visit(id, until_when, count, offset)
  end
end

-- The slots at this moment, without what is over for long; nil when they can't be read.
local function open(_, key, raw, at, is_section)
  raw = not is_section and redis.call('GET', key) or raw
  if #raw < at + 13 or (#raw - at - 13) % SLOT ~= 0 then
    return nil
  end
  local last, complete = unpack_from('>I7I7', raw, at)
  local all, used, over, oldest = pick(raw, at + 14), 0, 0, now
  walk(all, function(_, until_when, count)
    if until_when > now then
      used = used + count
    else
      over, oldest = over + 1, math.min(oldest, until_when)
    end
  end)
  local keep = over > MAX_EXPIRED and 0 or RELEASE_MEMORY
  if over > 0 and oldest + keep <= now then
    local kept = {}
    walk(all, function(id, until_when, count, offset)
      if until_when + keep > now then
        kept[#kept + 1] = pick(all, offset, offset + SLOT - 1)
      elseif count > 0 then
        complete = math.max(complete, id + 1)
      end
    end)
    all = table.concat(kept)
  end
  return {used, last, all, '', key, pick(raw, 1, at - 1), complete}
end

local function take(terms, state)
  local cost = terms[3]
  if state[1] + cost > terms[2] then
    return nil
  end
  local used, last, before, taken, key, tag, complete = unpack(state)
  local id = math.max(now, last + 1)
  if complete == 0 then
    complete = now
  end
  return {used + cost, id, before, taken .. pack('>I7I7I2', id, now + terms[1], cost), key, tag, complete}
end

-- What a client is to be told: how many were in use before this call, the last id, how many of those
-- will have gone when one more cost fits after what was taken, when that is, and when all of them will
-- have gone.
local function tell(terms, before, after)
  local held, latest = before[3] .. before[4], 0
  walk(held, function(_, until_when, count)
    if count > 0 then
      latest = math.max(latest, until_when)
    end
  end)
  local need = after[1] + math.max(terms[3], 1) - terms[2]
  local freed, freed_at = 0, 0
  if need > 0 then
    local ends = {}
    walk(after[3] .. after[4], function(_, until_when, count)
      if until_when > now and count > 0 then
        ends[#ends + 1] = {until_when, count}
      end
    end)
    table.sort(ends, function(one, other)
      return one[1] < other[1]
    end)
    local gone = 0
    for place = 1, #ends do
      if gone >= need then
        break
      end
      gone, freed_at = gone + ends[place][2], ends[place][1]
    end
    walk(held, function(_, until_when, count)
      freed = freed + (until_when > now and until_when <= freed_at and count or 0)
    end)
  end
  return pack('>I4I7I4I7I7', before[1], before[2], freed, freed_at, latest)
end

-- Until when the state says anything: for RELEASE_MEMORY after its last slot.
local function ends(_, state)
  local kept_until = state[2]
  walk(state[3] .. state[4], function(_, until_when)
    kept_until = math.max(kept_until, until_when)
  end)
  return kept_until + RELEASE_MEMORY
end

local function whole(_, state)
  return pack('>I7I7', state[2], state[7]) .. state[3] .. state[4], ends(nil, state)
end

local function store(_, state, tag)
  local kept, kept_until = whole(nil, state)
  if kept_until > now then
    redis.call('PSETEX', state[5], milliseconds_until(kept_until), tag .. kept)
  else
    redis.call('DEL', state[5])
  end
end

local amend
if REFUNDS then
  -- The offset of the first slot that is not before an id, and whether it has that id.
  local function find(slots, id)
    local low, high = 0, #slots / SLOT
    while low < high do
      local middle = math.floor((low + high) / 2)
      if unpack_from('>I7', slots, middle * SLOT + 1) < id then
        low = middle + 1
      else
        high = middle
      end
    end
    local offset = low * SLOT + 1
    return offset, offset < #slots and unpack_from('>I7', slots, offset) == id
  end

  -- Whether the state may lose track of an id before a renewal that is still under way arrives.
  local function needs_tombstone(state, id, offset)
    local needs = id < state[7]
    walk(pick(state[3], offset), function(_, until_when, count)
      needs = needs or (until_when <= now and count > 0)
    end)
    return needs
  end

  -- Renews or releases the slots of an id. Whether they are or were held, and whether the state changed.
  function amend(terms, id, renews, state)
    local slots, cost = state[3], terms[3]
    local offset, found = find(slots, id)
    local held_until, held = 0, 0
    if found then
      local _
      _, held_until, held = unpack_from('>I7I7I2', slots, offset)
      if held == 0 or (cost == 0 and not renews) then
        return false, false
      end
    else
      local count = renews and math.min(cost, terms[2]) or cost
      if count == 0 or (state[7] <= id and id <= state[2]) then
        return false, false
      end
      if renews and #slots >= MAX_SLOTS * SLOT then
        return false, false
      end
      -- An unknown id: nothing is known of it or of those before it.
      state[7] = math.max(state[7] == 0 and now or state[7], id + 1)
      state[2] = math.max(state[2], id)
    end
    local entry
    if renews then
      local until_when, count = math.max(held_until, now + terms[1]), held
      if not found then
        count = math.min(cost, terms[2])
      end
      if held_until <= now then
        state[1] = state[1] + count
      end
      entry = pack('>I7I7I2', id, until_when, count)
    else
      local freed = math.min(cost, held)
      if held_until > now then
        state[1] = state[1] - freed
      end
      if freed < held then
        entry = pack('>I7I7I2', id, held_until, held - freed)
      elseif not found or needs_tombstone(state, id, offset) then
        entry = pack('>I7I7I2', id, now, 0)
      else
        entry = ''
      end
      state[2] = math.max(state[2], now)
    end
    state[3] = pick(slots, 1, offset - 1) .. entry .. pick(slots, found and offset + SLOT or offset)
    return renews or held_until > now, true
  end
end

return {
  terms = terms, fresh = fresh, open = open, take = take, tell = tell, store = store, amend = amend,
  whole = whole, ends = ends,
}
