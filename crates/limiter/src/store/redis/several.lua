-- Requests of several charges, of which there may be several, on keys that others name too: states
-- stay here until the whole batch was decided, and each key is written once.

-- What the keys say, and the price under which each was read.
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
  if call('GET', KEYS[key]) == ARGV[place + 1] then
    raws[key] = ARGV[place + 2] ~= '' and ARGV[place + 2]
    if raws[key] then
      -- Logs are read from the key; the right time to live comes when this is written.
      call('SET', KEYS[key], raws[key], 'PX', 60000)
      change(key)
    else
      call('DEL', KEYS[key])
    end
  end
end

-- Reads a key. Nothing when its state belongs to another limit, or can't be read.
local function open(place, price)
  local raw, meter = raws[place], price.meter
  if raw == nil then
    -- As much as any state takes, and of a log its beginning.
    raw = redis.pcall('GETRANGE', KEYS[place], 0, 127)
    if type(raw) == 'table' then
      -- No string at all: its request fails, the others go on.
      return nil
    end
    raw = raw ~= '' and raw
    raws[place] = raw
  end
  local state
  if not raw then
    state = {meter.fresh(KEYS[place], price.length)}
  elseif sub(raw, 1, price.length) ~= price.tag then
    return nil
  elseif meter.open then
    state = {meter.open(price, KEYS[place], raw, price.length + 1)}
  else
    state = {meter.read(raw, price.length + 1)}
  end
  if state[1] then
    states[place], openers[place] = state, price
    return state
  end
end

-- The state of a key, if it was or can be read under the very limit that is charged.
local function opened(place, price)
  local opener = openers[place]
  if not opener then
    return open(place, price)
  end
  return opener.tag == price.tag and states[place]
end

local function answer(granted, place, price, before)
  local kept
  if price.meter.tell then
    kept = price.meter.tell(price, before[1], states[place][1])
  elseif is_changed[place] then
    kept = price.tag .. price.meter.write(price, unpack(before))
  else
    kept = raws[place] or ''
  end
  answers[last + 1], answers[last + 2] = char(granted, #kept), kept
  last = last + 2
end

-- All that is kept under a key, for who can't read it.
local function whole(place)
  local opener = openers[place]
  if opener and opener.meter.write then
    return opener.tag .. opener.meter.write(opener, unpack(states[place]))
  end
  local raw = redis.pcall('GET', KEYS[place])
  return type(raw) == 'string' and raw or ''
end

-- Charges a request up to `count` times: `text` from `at` names its charges.
local function charge(text, at, charges, count)
  local places, charged, befores, granted, readable = {}, {}, {}, 0, true
  for index = 1, charges do
    local place, priced = byte(text, at + 2 * index - 2, at + 2 * index - 1)
    places[index], charged[index] = place, prices[priced]
    befores[index] = opened(place, prices[priced]) or false
    readable = readable and befores[index]
  end
  -- Identical requests go one by one; the first that does not fit ends them.
  while readable and granted < count do
    local undo, fits = {}, true
    for index = 1, charges do
      local place, price = places[index], charged[index]
      local after = {price.meter.take(price, unpack(states[place]))}
      if not after[1] then
        fits = false
        break
      end
      undo[index], states[place] = states[place], after
    end
    if not fits then
      for index = #undo, 1, -1 do
        states[places[index]] = undo[index]
      end
      break
    end
    granted = granted + 1
  end
  for index = 1, charges do
    if befores[index] then
      answer(granted, places[index], charged[index], befores[index])
    else
      answer_unread(whole(places[index]))
    end
  end
  if granted > 0 then
    for index = 1, charges do
      change(places[index])
    end
  end
end

local function finish()
  for index = 1, #changed do
    local place = changed[index]
    local price, state = openers[place], states[place]
    if not state then
      -- Taken over and never read: it was written as it is.
    elseif price.meter.store then
      price.meter.store(price, state[1], price.tag)
    else
      local kept, kept_until = price.meter.write(price, unpack(state))
      if kept_until > now then
        call('PSETEX', KEYS[place], milliseconds_until(kept_until), price.tag .. kept)
      else
        call('DEL', KEYS[place])
      end
    end
  end
end

return charge, finish
