-- Charges a batch of requests, one after another, each all or nothing.
--
-- KEYS     every key of the batch, once
-- ARGV[1]  prices: algorithm, length of its tag, how many of its bytes from the third on are shared by
--          limits with the same state, tag, terms of the limit and the cost
-- ARGV[2]  requests: how many identical ones (0 only looks), how many charges, and for each charge the
--          place of its key and of its price. With 0 for the charges it is a single one, made once,
--          of a key that no other request of the batch names
-- ARGV[3…] states to take over from another limit: place of the key, tag of the new limit, the section
--          that was found under it, and the one to put in its place
--
-- Answers with the time, and for each charge how many were granted, the length of what was kept before
-- them, and that: nothing for a new client. A state that was last used by another limit or can't be read
-- comes as 0, 255, a longer length and the whole value; nothing was charged to its request.

local char, call, LOG = string.char, redis.call, 5

local prices, some_logs = {}, false
do
  local text, at = ARGV[1], 1
  while at <= #text do
    local id, length, shared = byte(text, at, at + 2)
    local meter = meter_of(id)
    local price = {meter.terms(text, at + 3 + length)}
    price.meter, price.tag, price.length = meter, sub(text, at + 3, at + 2 + length), length
    price.shared = shared
    -- The last term is where the next price begins.
    at = price[#price]
    prices[#prices + 1] = price
    some_logs = some_logs or id >= LOG
  end
end

-- The bytes of each key, false for none. A log is never read whole, and neither it nor slots fit an answer.
local raws = (some_logs or #KEYS == 0) and {} or call('MGET', unpack(KEYS))
local answers, last = {}, 0

local function answer_unread(raw)
  answers[last + 1], answers[last + 2] = pack('>I1I1I4', 0, 255, #raw), raw
  last = last + 2
end

-- Charges a key that no other request of the batch names, once: what most requests are. Nothing is done
-- when it is under another limit; then this returns false.
local function charge_single(place, price)
  local key, raw, length, meter = KEYS[place], raws[place], price.length, price.meter
  local a, b, c, d
  if raw then
    if sub(raw, 1, length) ~= price.tag then
      return false
    end
    a, b, c, d = meter.read(raw, length + 1)
    if not a then
      answer_unread(raw)
      return true
    end
  else
    a, b, c, d = meter.fresh()
    raw = ''
  end
  a, b, c, d = meter.take(price, a, b, c, d)
  if a then
    local kept, kept_until = meter.write(price, a, b, c, d)
    call('PSETEX', key, milliseconds_until(kept_until), price.tag .. kept)
    answers[last + 1] = char(1, #raw)
  else
    answers[last + 1] = char(0, #raw)
  end
  answers[last + 2] = raw
  last = last + 2
  return true
end

--[[ multi_charge.lua ]]
local charge_multi, finish
if #ARGV > 2 or some_logs then
  charge_multi, finish = multi_charge()
end

local text, at, size = ARGV[2], 1, #ARGV[2]
while at <= size do
  local count, charges, place, priced = byte(text, at, at + 3)
  if charges == 0 and not some_logs and charge_single(place, prices[priced]) then
    at = at + 4
  else
    if charges == 0 then
      charges = 1
    end
    if not charge_multi then
      charge_multi, finish = multi_charge()
    end
    charge_multi(text, at + 2, charges, count)
    at = at + 2 + 2 * charges
  end
end
if finish then
  finish()
end

return pack('>I7', now) .. table.concat(answers)
