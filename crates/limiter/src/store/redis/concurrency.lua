-- Slots in flight. The string is the last id that was given out and slots of sixteen bytes (id, until when
-- they are held, how many), by id. It is read and written whole: any of them may end at any time.
--
-- Slots that a call takes are kept apart until they are written. A state is {used, last id, slots from
-- before, slots taken in this call, key, tag}. Slots in flight are one state under all limits in flight.
--
-- Terms: hold, amount, cost. As of a log, a state is a table and its key is read and written here.

local SLOT = 16
local pick = string.sub

local function terms(text, at)
  return unpack_from('>I7I7I7', text, at)
end

local function fresh(key)
  return {0, 0, '', '', key}
end

-- Calls `visit(id, until_when, count, offset)` for each of some slots, until it returns true.
local function walk(slots, visit)
  for offset = 1, #slots, SLOT do
    local id, until_when, count = unpack_from('>I7I7I2', slots, offset)
    if visit(id, until_when, count, offset) then
      return
    end
  end
end

-- The slots that are held at this moment; nil when they can't be read.
local function open(_, key, raw, at, is_section)
  raw = not is_section and redis.call('GET', key) or raw
  if #raw < at + 6 or (#raw - at - 6) % SLOT ~= 0 then
    return nil
  end
  local last, all = unpack_from('>I7', raw, at), pick(raw, at + 7)
  local used, live, over = 0, {}, false
  walk(all, function(_, until_when, count, offset)
    if until_when > now then
      used = used + count
      live[#live + 1] = offset
    else
      over = true
    end
  end)
  if over then
    for place = 1, #live do
      live[place] = pick(all, live[place], live[place] + SLOT - 1)
    end
    all = table.concat(live)
  end
  return {used, last, all, '', key, pick(raw, 1, at - 1)}
end

local function take(terms, state)
  local cost = terms[3]
  if state[1] + cost > terms[2] then
    return nil
  end
  local used, last, before, taken, key, tag = unpack(state)
  local id = math.max(now, last + 1)
  return {used + cost, id, before, taken .. pack('>I7I7I2', id, now + terms[1], cost), key, tag}
end

-- What a client is to be told: how many were in use before this call, the last id, how many of those
-- will have gone when one more cost fits after what was taken, when that is, and when all of them will
-- have gone.
local function tell(terms, before, after)
  local held, latest = before[3] .. before[4], 0
  walk(held, function(_, until_when)
    latest = math.max(latest, until_when)
  end)
  local need = after[1] + math.max(terms[3], 1) - terms[2]
  local freed, freed_at = 0, 0
  if need > 0 then
    local ends = {}
    walk(after[3] .. after[4], function(_, until_when, count)
      ends[#ends + 1] = {until_when, count}
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
      freed = freed + (until_when <= freed_at and count or 0)
    end)
  end
  return pack('>I4I7I4I7I7', before[1], before[2], freed, freed_at, latest)
end

-- An id is known until it is past: the next one has to be another.
local function ends(_, state)
  local kept_until = state[2] + 1
  walk(state[3] .. state[4], function(_, until_when)
    kept_until = math.max(kept_until, until_when)
  end)
  return kept_until
end

local function whole(_, state)
  return pack('>I7', state[2]) .. state[3] .. state[4], ends(nil, state)
end

local function store(_, state, tag)
  local kept, kept_until = whole(nil, state)
  if kept_until > now then
    redis.call('PSETEX', state[5], milliseconds_until(kept_until), tag .. kept)
  else
    redis.call('DEL', state[5])
  end
end

local refund
if REFUNDS then
  -- Releases the slots that the slip names, or with a cost of nothing holds them on. Whether they were
  -- held; without a name nobody's are.
  function refund(terms, slip, state)
    local slots, found, until_when, count = state[3]
    walk(slip and slots or '', function(id, held_until, held, offset)
      if id == slip[1] then
        found, until_when, count = offset, held_until, held
      end
      return id >= slip[1]
    end)
    if not found then
      return false
    end
    local cost, rest = terms[3], ''
    if cost == 0 then
      until_when = math.max(until_when, now + terms[1])
    end
    if cost < count then
      rest = pack('>I7I7I2', slip[1], until_when, count - cost)
    end
    state[3] = pick(slots, 1, found - 1) .. rest .. pick(slots, found + SLOT)
    if state[5] then
      store(terms, state, state[6])
    end
    return true
  end
end

return {
  terms = terms, fresh = fresh, open = open, take = take, tell = tell, store = store, refund = refund,
  whole = whole, ends = ends,
}
