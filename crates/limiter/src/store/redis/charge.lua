-- Charges a batch of requests, one after another, each all or nothing.
--
-- KEYS     every key of the batch, once
-- ARGV[1]  prices: algorithm, length of its tag, tag, terms of the limit and the cost
-- ARGV[2]  requests: how many identical ones (0 only looks), how many charges, and for each charge the
--          place of its key and of its price
-- ARGV[3…] states to take over from another limit: place of the key, the bytes that were found, the
--          same state under the new limit
--
-- Answers with the time, and for each charge how many were granted, the length of what was kept before
-- them, and that: nothing for a new client. A state that belongs to another limit or can't be read
-- comes as 0, 255, a longer length and the whole of it; nothing was charged to its request.

local byte, char, sub, LOG = string.byte, string.char, string.sub, 5
local makers, meters = {token_bucket, leaky_bucket, fixed_window, sliding_window, sliding_log}, {}

local prices, some_logs = {}, false
do
  local text, at = ARGV[1], 1
  while at <= #text do
    local id, length = byte(text, at, at + 1)
    local meter = meters[id]
    if not meter then
      meter = makers[id]()
      meters[id] = meter
    end
    local price = {meter.terms(text, at + 2 + length)}
    price.meter, price.tag, price.length = meter, sub(text, at + 2, at + 1 + length), length
    -- The last term is where the next price begins.
    at = price[#price]
    prices[#prices + 1] = price
    some_logs = some_logs or id == LOG
  end
end

-- The bytes of each key, false for none. A log is never read whole.
local raws = (some_logs or #KEYS == 0) and {} or redis.call('MGET', unpack(KEYS))
-- What they say, and the price under which they were read.
local states, openers = {}, {}
-- The places of keys that have to be written, and whether one is among them.
local changed, is_changed = {}, {}

local function change(place)
  if not is_changed[place] then
    changed[#changed + 1], is_changed[place] = place, true
  end
end

for place = 3, #ARGV, 3 do
  local key = tonumber(ARGV[place])
  if redis.call('GET', KEYS[key]) == ARGV[place + 1] then
    raws[key] = ARGV[place + 2] ~= '' and ARGV[place + 2]
    if raws[key] then
      -- Logs are read from the key; the right time to live comes when this is written.
      redis.call('SET', KEYS[key], raws[key], 'PX', 60000)
      change(key)
    else
      redis.call('DEL', KEYS[key])
    end
  end
end

-- Reads a key. False when its state belongs to another limit, or can't be read.
local function open(place, price)
  local raw, meter = raws[place], price.meter
  if raw == nil then
    raw = redis.call('GETRANGE', KEYS[place], 0, meter.open and 127 or 999)
    raw = raw ~= '' and raw
    raws[place] = raw
  end
  local state
  if not raw then
    state = meter.fresh(KEYS[place], price.length)
  elseif sub(raw, 1, price.length) ~= price.tag then
    return false
  elseif meter.open then
    state = meter.open(price, KEYS[place], raw, price.length + 1)
  else
    state = meter.read(raw, price.length + 1)
  end
  states[place], openers[place] = state, price
  return state
end

local answers, last = {}, 0

local function answer(granted, place, price, before)
  local kept
  if price.meter.tell then
    kept = price.meter.tell(price, before, states[place])
  elseif is_changed[place] then
    kept = price.tag .. price.meter.write(price, before)
  else
    kept = raws[place] or ''
  end
  answers[last + 1], answers[last + 2] = char(granted, #kept), kept
  last = last + 2
end

local function answer_unread(place)
  local raw
  local opener = openers[place]
  if opener and opener.meter.write then
    raw = opener.tag .. opener.meter.write(opener, states[place])
  else
    raw = redis.call('GET', KEYS[place]) or ''
  end
  answers[last + 1], answers[last + 2] = pack('>I1I1I4', 0, 255, #raw), raw
  last = last + 2
end

-- Spends up to `count` times. How often it fitted, and the state after that.
local function spend(count, price, state)
  local take, granted = price.meter.take, 0
  while granted < count do
    local after = take(price, state)
    if not after then
      break
    end
    state, granted = after, granted + 1
  end
  return granted, state
end

-- Whether a charge can be made: its key was read under the very limit that is charged.
local function is_open(place, price)
  local opener = openers[place]
  if opener then
    return states[place] and opener.tag == price.tag
  end
  return open(place, price)
end

-- Charges a request of several charges up to `count` times: `text` from `at` names them.
local function charge_together(text, at, charges, count)
  local places, charged, befores, granted, readable = {}, {}, {}, 0, true
  for charge = 1, charges do
    local place, priced = byte(text, at + 2 * charge - 2, at + 2 * charge - 1)
    places[charge], charged[charge] = place, prices[priced]
    readable = is_open(place, prices[priced]) and readable
    befores[charge] = states[place]
  end
  -- Identical requests go one by one; the first that does not fit ends them.
  while readable and granted < count do
    local undo, fits = {}, true
    for charge = 1, charges do
      local place, price = places[charge], charged[charge]
      local after = price.meter.take(price, states[place])
      if not after then
        fits = false
        break
      end
      undo[charge], states[place] = states[place], after
    end
    if not fits then
      for charge = #undo, 1, -1 do
        states[places[charge]] = undo[charge]
      end
      break
    end
    granted = granted + 1
  end
  for charge = 1, charges do
    local place, price = places[charge], charged[charge]
    if is_open(place, price) then
      answer(granted, place, price, befores[charge])
    else
      answer_unread(place)
    end
  end
  for charge = 1, charges do
    if granted > 0 then
      change(places[charge])
    end
  end
end

local text, at, size = ARGV[2], 1, #ARGV[2]
while at <= size do
  local count, charges, place, priced = byte(text, at, at + 3)
  if charges == 1 then
    local price = prices[priced]
    if is_open(place, price) then
      local before = states[place]
      local granted, after = spend(count, price, before)
      states[place] = after
      answer(granted, place, price, before)
      if granted > 0 then
        change(place)
      end
    else
      answer_unread(place)
    end
  else
    charge_together(text, at + 2, charges, count)
  end
  at = at + 2 + 2 * charges
end

for index = 1, #changed do
  local place = changed[index]
  local price, state, key = openers[place], states[place], KEYS[place]
  if not state then
    -- Taken over and never read: it was written as it is.
  elseif price.meter.store then
    price.meter.store(price, state, price.tag)
  else
    local kept, kept_until = price.meter.write(price, state)
    if kept_until > now then
      redis.call('SET', key, price.tag .. kept, 'PX', milliseconds_until(kept_until))
    else
      redis.call('DEL', key)
    end
  end
end

return pack('>I7', now) .. table.concat(answers)
