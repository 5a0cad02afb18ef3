-- Slots in flight. The string has the time of the latest id or release, the id from which on every slot is
-- known, and entries of 16 bytes (id, end of the hold time, number of slots), sorted by id. An entry after its
-- hold time is expired. An entry with 0 slots is a tombstone, with the time of the release. Both are stored
-- for RELEASE_TTL. The string is read and written as a whole, since any slot may end at any time.
--
-- A state is {used, last, stored entries, entries of this call, key, tag, complete from}. All limits in flight
-- share one state.
--
-- Terms: hold time, amount, cost. As for a sliding log, a state is a table, and the meter reads and writes its key
-- itself.

local SLOT_BYTES, RELEASE_TTL, MAX_EXPIRED, MAX_SLOTS = 16, 60000000, 1024, 20000
local sub_bytes = string.sub

local function terms(text, at)
  return unpack_from('>I7I7I7', text, at)
end

local function fresh(key, tag)
  return {0, 0, '', '', key, tag, 0}
end

-- Calls `visit(id, ends_at, count, offset)` for each entry.
local function walk(slots, visit)
  for offset = 1, #slots, SLOT_BYTES do
    local id, ends_at, count = unpack_from('>I7I7I2', slots, offset)
    visit(id, ends_at, count, offset)
  end
end

-- Returns the current state, without entries that ended more than RELEASE_TTL ago; nil if it is not valid.
local function open(_, key, raw, at, is_section)
  raw = not is_section and redis.call('GET', key) or raw
  if #raw < at + 13 or (#raw - at - 13) % SLOT_BYTES ~= 0 then
    return nil
  end
  local last, complete_from = unpack_from('>I7I7', raw, at)
  local all, used, expired_count, oldest = sub_bytes(raw, at + 14), 0, 0, now
  walk(all, function(_, ends_at, count)
    if ends_at > now then
      used = used + count
    else
      expired_count, oldest = expired_count + 1, math.min(oldest, ends_at)
    end
  end)
  local retention = expired_count > MAX_EXPIRED and 0 or RELEASE_TTL
  if expired_count > 0 and oldest + retention <= now then
    local kept = {}
    walk(all, function(id, ends_at, count, offset)
      if ends_at + retention > now then
        kept[#kept + 1] = sub_bytes(all, offset, offset + SLOT_BYTES - 1)
      elseif count > 0 then
        complete_from = math.max(complete_from, id + 1)
      end
    end)
    all = table.concat(kept)
  end
  return {used, last, all, '', key, sub_bytes(raw, 1, at - 1), complete_from}
end

local function take(terms, state)
  local cost = terms[3]
  if state[1] + cost > terms[2] then
    return nil
  end
  local used, last, before, taken, key, tag, complete_from = unpack(state)
  local id = math.max(now, last + 1)
  if complete_from == 0 then
    complete_from = now
  end
  return {used + cost, id, before, taken .. pack('>I7I7I2', id, now + terms[1], cost), key, tag, complete_from}
end

-- Returns the numbers that the node computes the outcome from: the slots in use before this call, the last id,
-- the number of those slots that have ended when one more cost fits, the time at which it fits, and the time
-- at which all slots have ended.
local function summary(terms, before, after)
  local held, latest = before[3] .. before[4], 0
  walk(held, function(_, ends_at, count)
    if count > 0 then
      latest = math.max(latest, ends_at)
    end
  end)
  local need = after[1] + math.max(terms[3], 1) - terms[2]
  local freed, freed_at = 0, 0
  if need > 0 then
    local ends = {}
    walk(after[3] .. after[4], function(_, ends_at, count)
      if ends_at > now and count > 0 then
        ends[#ends + 1] = {ends_at, count}
      end
    end)
    table.sort(ends, function(one, other)
      return one[1] < other[1]
    end)
    local freed_total = 0
    for index = 1, #ends do
      if freed_total >= need then
        break
      end
      freed_total, freed_at = freed_total + ends[index][2], ends[index][1]
    end
    walk(held, function(_, ends_at, count)
      freed = freed + (ends_at > now and ends_at <= freed_at and count or 0)
    end)
  end
  return pack('>I4I7I4I7I7', before[1], before[2], freed, freed_at, latest)
end

-- Returns when the state expires: RELEASE_TTL after the end of its last slot.
local function expires_at(_, state)
  local expiry = state[2]
  walk(state[3] .. state[4], function(_, ends_at)
    expiry = math.max(expiry, ends_at)
  end)
  return expiry + RELEASE_TTL
end

local function write_all(_, state)
  return pack('>I7I7', state[2], state[7]) .. state[3] .. state[4], expires_at(nil, state)
end

local function store(_, state, tag)
  local kept, expiry = write_all(nil, state)
  if expiry > now then
    redis.call('PSETEX', state[5], milliseconds_until(expiry), tag .. kept)
  else
    redis.call('DEL', state[5])
  end
end

local amend
if REFUNDS then
  -- Returns the offset of the first entry with this id or a later one, and whether it has this id.
  local function find(slots, id)
    local low, high = 0, #slots / SLOT_BYTES
    while low < high do
      local middle = math.floor((low + high) / 2)
      if unpack_from('>I7', slots, middle * SLOT_BYTES + 1) < id then
        low = middle + 1
      else
        high = middle
      end
    end
    local offset = low * SLOT_BYTES + 1
    return offset, offset < #slots and unpack_from('>I7', slots, offset) == id
  end

  -- Returns whether a release has to leave a tombstone: the state may drop this id before a renewal in flight
  -- arrives.
  local function needs_tombstone(state, id, offset)
    local needs = id < state[7]
    walk(sub_bytes(state[3], offset), function(_, ends_at, count)
      needs = needs or (ends_at <= now and count > 0)
    end)
    return needs
  end

  -- Renews or releases the slots of an id. Returns whether they are or were held, and whether the state changed.
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
      if renews and #slots >= MAX_SLOTS * SLOT_BYTES then
        return false, false
      end
      -- The id is unknown, so the state is not complete for this id and earlier ones.
      state[7] = math.max(state[7] == 0 and now or state[7], id + 1)
      state[2] = math.max(state[2], id)
    end
    local entry
    if renews then
      local ends_at, count = math.max(held_until, now + terms[1]), held
      if not found then
        count = math.min(cost, terms[2])
      end
      if held_until <= now then
        state[1] = state[1] + count
      end
      entry = pack('>I7I7I2', id, ends_at, count)
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
    state[3] = sub_bytes(slots, 1, offset - 1) .. entry .. sub_bytes(slots, found and offset + SLOT_BYTES or offset)
    return renews or held_until > now, true
  end
end

return {
  terms = terms, fresh = fresh, open = open, take = take, summary = summary, store = store, amend = amend,
  write_all = write_all, expires_at = expires_at,
}
