-- Sliding log. The string is a header (index of the first live entry, number of entries, tokens spent, last
-- instant) and entries of 9 bytes (instant, cost), oldest first. Only the header and a few entries at both ends
-- are read and written, so a long log costs no more than a short one. Expired entries are removed when there are
-- 64 or more of them and they are more than half of the log.
--
-- All charges of one call have the same instant, so a call adds at most one entry. Its cost stays in the state
-- until the log is written. A state is {first, count, spent, last, added, key, start of the header, text}. If the
-- key has several sections, the log is read as a whole, into `text`.
--
-- Terms: window, amount, cost. Unlike in other meters, a state is a table, and the meter reads and writes its key
-- itself: it has `open` instead of `read` and `store` instead of `write`. `summary` returns the numbers that a
-- node needs, `write_all` the bytes of a section, `expires_at` the expiry of a state.

local HEADER_BYTES, ENTRY_BYTES = 19, 9
-- Number of entries that are read at a time.
local RUN_ENTRIES = 64
local sub_bytes = string.sub

local function terms(text, at)
  return unpack_from('>I7I7I7', text, at)
end

local function entries(state, from, to)
  local start = state[7] + HEADER_BYTES + from * ENTRY_BYTES
  if state[8] then
    return sub_bytes(state[8], start + 1, start + (to - from) * ENTRY_BYTES)
  end
  return redis.call('GETRANGE', state[6], start, start + (to - from) * ENTRY_BYTES - 1)
end

-- Calls `visit(index, at, cost)` for live entries from the first on, until it returns true.
local function walk(state, visit)
  local index = state[1]
  while index < state[2] do
    local run = entries(state, index, math.min(index + RUN_ENTRIES, state[2]))
    for offset = 1, #run, ENTRY_BYTES do
      local at, cost = unpack_from('>I7I2', run, offset)
      if visit(index, at, cost) then
        return
      end
      index = index + 1
    end
    if run == '' then
      return
    end
  end
end

local function fresh(key, start)
  return {0, 0, 0, 0, 0, key, start}
end

-- Returns the current state; nil if it is not valid.
local function open(terms, key, raw, at, is_section)
  if #raw < at + HEADER_BYTES - 1 then
    return nil
  end
  local window, first, count, spent, last = terms[1], unpack_from('>I4I4I4I7', raw, at)
  local state = {first, count, spent, last, 0, key, at - 1, is_section and raw or nil}
  walk(state, function(index, instant, cost)
    if instant + window > now then
      return true
    end
    state[1], state[3] = index + 1, state[3] - cost
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

-- Returns the numbers that the node computes the outcome from: the tokens spent before this call, the entries
-- that have to expire before one more cost fits, and the last instant. These entries are reported as one, at
-- the instant of the last of them: for this cost the outcome is the same.
local function summary(terms, before, after)
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

-- Returns the entry that this call adds, its index, and the last instant.
local function newest(state)
  local _, count, _, last, added = unpack(state)
  local entry, index = '', count
  if added > 0 then
    local own_now = math.max(now, last)
    if count > 0 and last == own_now then
      index = count - 1
      local _, cost = unpack_from('>I7I2', entries(state, index, count))
      added = added + cost
    end
    entry, last = pack('>I7I2', own_now, added), own_now
  end
  return entry, index, last
end

local function write_all(terms, state)
  local first, count, spent = unpack(state)
  local entry, index, last = newest(state)
  if count == 0 and entry == '' then
    return '', 0
  end
  local after = entry ~= '' and index + 1 or count
  local live = index > first and entries(state, first, index) or ''
  return pack('>I4I4I4I7', 0, after - first, spent, last) .. live .. entry, last + terms[1]
end

local function expires_at(terms, state)
  return state[2] > 0 and state[4] + terms[1] or 0
end

local function store(terms, state, tag)
  local first, count, spent, _, added, key, start = unpack(state)
  if count == 0 and added == 0 then
    redis.call('DEL', key)
    return
  end
  local entry, index, last = newest(state)
  local ttl = milliseconds_until(last + terms[1])
  local after = added > 0 and index + 1 or count
  if count == 0 or (first >= RUN_ENTRIES and first * 2 > count) then
    redis.call('PSETEX', key, ttl, tag .. write_all(terms, state))
    return
  end
  if added > 0 then
    redis.call('SETRANGE', key, start + HEADER_BYTES + index * ENTRY_BYTES, entry)
  end
  redis.call('SETRANGE', key, start, pack('>I4I4I4I7', first, after, spent, last))
  redis.call('PEXPIRE', key, ttl)
end

local refund
if REFUNDS then
  -- Returns the index and the cost of the entry of an instant.
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

  local function put(state, index, at, cost)
    local start, entry = state[7] + HEADER_BYTES + index * ENTRY_BYTES, pack('>I7I2', at, cost)
    if state[8] then
      state[8] = sub_bytes(state[8], 1, start) .. entry .. sub_bytes(state[8], start + ENTRY_BYTES + 1)
    else
      redis.call('SETRANGE', state[6], start, entry)
    end
  end

  -- Removes up to `wanted` tokens from the entry of an instant. Returns the number of removed tokens.
  local function take_at(state, instant, wanted)
    local index, cost = find(state, instant)
    local taken = index and math.min(wanted, cost) or 0
    if taken > 0 then
      put(state, index, instant, cost - taken)
    end
    return taken
  end

  -- Removes up to `wanted` tokens from the newest entries. Returns the number of removed tokens.
  local function take_newest(state, wanted)
    local left = wanted
    while left > 0 and state[2] > state[1] do
      local from = math.max(state[2] - RUN_ENTRIES, state[1])
      local run = entries(state, from, state[2])
      for index = state[2] - 1, from, -1 do
        local at, cost = unpack_from('>I7I2', run, (index - from) * ENTRY_BYTES + 1)
        if cost > left then
          put(state, index, at, cost - left)
          return wanted
        end
        left, state[2] = left - cost, index
        if left == 0 then
          return wanted
        end
      end
    end
    return wanted - left
  end

  -- Removes the cost from the entry of the refund token, or from the newest entries, and writes the log, unless
  -- it is a section. Returns whether any token was removed.
  function refund(terms, refund_token, state)
    local taken = refund_token and take_at(state, refund_token[1], terms[3])
    taken = taken or take_newest(state, terms[3])
    if taken == 0 then
      return false
    end
    local first, count, spent, last, _, key, start = unpack(state)
    -- Drops empty entries at the end. The instant of the last entry is the last instant of the log.
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
  terms = terms, fresh = fresh, open = open, take = take, summary = summary, store = store, refund = refund,
  write_all = write_all, expires_at = expires_at,
}
