-- Sliding log. The string is a header (first live entry, entries, spent, last instant) and entries of
-- nine bytes (instant, cost), oldest first. Only the ends of it are read and written: a long log
-- costs no more than a short one. Entries before the first live one are dropped now and then.
--
-- All charges of one call happen at one instant, so a call adds at most one entry; its cost is kept
-- apart until it is written. A state is {first, count, spent, last, added, key, start of the header,
-- text}. Where the log is one of several sections of its key, it is read whole, as the text.
--
-- Terms: window, amount, cost. Unlike other meters this one has a table for a state, and reads and
-- writes its key itself: `open` instead of `read`, `store` instead of `write`, and `tell` for what a
-- client needs to know of it. `whole` writes a section, `ends` is until when it says anything.

local HEADER, ENTRY = 19, 9
-- Entries are read in runs of this many.
local RUN = 64
local pick = string.sub

local function terms(text, at)
  return unpack_from('>I7I7I7', text, at)
end

local function entries(state, from, to)
  local start = state[7] + HEADER + from * ENTRY
  if state[8] then
    return pick(state[8], start + 1, start + (to - from) * ENTRY)
  end
  return redis.call('GETRANGE', state[6], start, start + (to - from) * ENTRY - 1)
end

-- Calls `visit(place, at, cost)` for live entries from the first on, until it returns true.
local function walk(state, visit)
  local place = state[1]
  while place < state[2] do
    local run = entries(state, place, math.min(place + RUN, state[2]))
    for offset = 1, #run, ENTRY do
      local at, cost = unpack_from('>I7I2', run, offset)
      if visit(place, at, cost) then
        return
      end
      place = place + 1
    end
    if run == '' then
      return
    end
  end
end

local function fresh(key, start)
  return {0, 0, 0, 0, 0, key, start}
end

-- The log as it stands at this moment; nil when it can't be read.
local function open(terms, key, raw, at, is_section)
  if #raw < at + HEADER - 1 then
    return nil
  end
  local window, first, count, spent, last = terms[1], unpack_from('>I4I4I4I7', raw, at)
  local state = {first, count, spent, last, 0, key, at - 1, is_section and raw or nil}
  walk(state, function(place, instant, cost)
    if instant + window > now then
      return true
    end
    state[1], state[3] = place + 1, state[3] - cost
  end)
  if state[1] == count then
    return fresh(key, at - 1)
  end
  return state
end

local function take(terms, state)
  local cost = terms[3]
  if state[3] + cost > terms[2] then
    return nil
  end
  local first, count, spent, last, added, key, start = unpack(state)
  return {first, count, spent + cost, last, added + cost, key, start, state[8]}
end

-- What a client is to be told: spent before this call, the entries that have to go before one more
-- cost fits after what was added, and the last instant. Those entries count as one, at the instant of
-- the last of them: for this cost it makes no difference.
local function tell(terms, before, after)
  local need = after[3] + math.max(terms[3], 1) - terms[2]
  local freed, freed_at = 0, 0
  if need > 0 then
    walk(before, function(_, at, cost)
      freed, freed_at = freed + cost, at
      return freed >= need
    end)
  end
  return pack('>I4I4I4I7I7', before[3], before[5], freed, freed_at, before[4])
end

-- The entry that this call adds, its place, and the last instant.
local function newest(state)
  local _, count, _, last, added = unpack(state)
  local entry, place = '', count
  if added > 0 then
    local own_now = math.max(now, last)
    if count > 0 and last == own_now then
      place = count - 1
      local _, cost = unpack_from('>I7I2', entries(state, place, count))
      added = added + cost
    end
    entry, last = pack('>I7I2', own_now, added), own_now
  end
  return entry, place, last
end

local function whole(terms, state)
  local first, count, spent = unpack(state)
  local entry, place, last = newest(state)
  if count == 0 and entry == '' then
    return '', 0
  end
  local after = entry ~= '' and place + 1 or count
  local live = place > first and entries(state, first, place) or ''
  return pack('>I4I4I4I7', 0, after - first, spent, last) .. live .. entry, last + terms[1]
end

local function ends(terms, state)
  return state[2] > 0 and state[4] + terms[1] or 0
end

local function store(terms, state, tag)
  local first, count, spent, _, added, key, start = unpack(state)
  if count == 0 and added == 0 then
    redis.call('DEL', key)
    return
  end
  local entry, place, last = newest(state)
  local ttl = milliseconds_until(last + terms[1])
  local after = added > 0 and place + 1 or count
  if count == 0 or (first >= RUN and first * 2 > count) then
    redis.call('PSETEX', key, ttl, tag .. whole(terms, state))
    return
  end
  if added > 0 then
    redis.call('SETRANGE', key, start + HEADER + place * ENTRY, entry)
  end
  redis.call('SETRANGE', key, start, pack('>I4I4I4I7', first, after, spent, last))
  redis.call('PEXPIRE', key, ttl)
end

local refund
if REFUNDS then
  -- The place of the entry of an instant, and its cost.
  local function find(state, instant)
    local low, high = state[1], state[2] - 1
    while low <= high do
      local middle = math.floor((low + high) / 2)
      local at, cost = unpack_from('>I7I2', entries(state, middle, middle + 1))
      if at == instant then
        return middle, cost
      elseif at < instant then
        low = middle + 1
      else
        high = middle - 1
      end
    end
  end

  local function put(state, place, at, cost)
    local start, entry = state[7] + HEADER + place * ENTRY, pack('>I7I2', at, cost)
    if state[8] then
      state[8] = pick(state[8], 1, start) .. entry .. pick(state[8], start + ENTRY + 1)
    else
      redis.call('SETRANGE', state[6], start, entry)
    end
  end

  -- Takes up to `wanted` off the entry of an instant. What was taken.
  local function take_at(state, instant, wanted)
    local place, cost = find(state, instant)
    local taken = place and math.min(wanted, cost) or 0
    if taken > 0 then
      put(state, place, instant, cost - taken)
    end
    return taken
  end

  -- Takes up to `wanted` off the newest entries, which are gone then. What was taken.
  local function take_newest(state, wanted)
    local left = wanted
    while left > 0 and state[2] > state[1] do
      local from = math.max(state[2] - RUN, state[1])
      local run = entries(state, from, state[2])
      for place = state[2] - 1, from, -1 do
        local at, cost = unpack_from('>I7I2', run, (place - from) * ENTRY + 1)
        if cost > left then
          put(state, place, at, cost - left)
          return wanted
        end
        left, state[2] = left - cost, place
        if left == 0 then
          return wanted
        end
      end
    end
    return wanted - left
  end

  -- Takes the cost off the entry of the refund token, or off the newest, and writes the log, unless it is a
  -- section. Whether there was any.
  function refund(terms, refund_token, state)
    local taken = refund_token and take_at(state, refund_token[1], terms[3])
    taken = taken or take_newest(state, terms[3])
    if taken == 0 then
      return false
    end
    local first, count, spent, last, _, key, start = unpack(state)
    -- Entries at the end that are empty now are gone: the last one tells the log's time.
    while count > first do
      local at, left = unpack_from('>I7I2', entries(state, count - 1, count))
      last = at
      if left > 0 then
        break
      end
      count = count - 1
    end
    if state[8] then
      state[2], state[3], state[4] = count > first and count or 0, spent - taken, last
      state[1] = count > first and first or 0
    elseif count == first then
      redis.call('DEL', key)
    else
      redis.call('SETRANGE', key, start, pack('>I4I4I4I7', first, count, spent - taken, last))
    end
    return true
  end
end

return {
  terms = terms, fresh = fresh, open = open, take = take, tell = tell, store = store, refund = refund,
  whole = whole, ends = ends,
}
