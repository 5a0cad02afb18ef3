-- Charges a batch of requests, one after another, each all or nothing.
--
-- KEYS     every key of the batch, once
-- ARGV[1]  limits with a cost: algorithm, length of the tag, number of its bytes from the third on that are
--          shared by limits with the same state, tag, terms of the limit and the cost
-- ARGV[2]  requests: number of identical ones (0 is a peek), number of charges, and for each charge the index
--          of its key and of its limit. 0 charges stand for a single charge, made once, of a key that no other
--          request of the batch uses
-- ARGV[3…] states to migrate from another limit: index of the key, tag of the new limit, the section that was
--          found under it, and the section that replaces it
--
-- Returns the time, and for each charge the number of granted requests, the length of the state before them, and
-- that state: empty for a new client. If the key was last used by another limit or is not valid, the reply is
-- 0, 255, a longer length and the whole value; its request was not charged.

local char, call = string.char, redis.call
-- From this algorithm on, states are tables: logs and slots.
local FIRST_TABLE_METER = 5

local limits, has_tables = {}, false
do
  local text, at = ARGV[1], 1
  while at <= #text do
    local id, length, shared = byte(text, at, at + 2)
    local meter = meter_of(id)
    local limit = {meter.terms(text, at + 3 + length)}
    limit.meter, limit.tag, limit.length = meter, sub(text, at + 3, at + 2 + length), length
    limit.shared = shared
    -- The last of the terms is the position after them.
    at = limit[#limit]
    limits[#limits + 1] = limit
    has_tables = has_tables or id >= FIRST_TABLE_METER
  end
end

-- The bytes of each key; false for none. A log is never read as a whole, so with logs or slots nothing is read here.
local raws = (has_tables or #KEYS == 0) and {} or call('MGET', unpack(KEYS))
local replies, last = {}, 0

local function reply_unreadable(raw)
  replies[last + 1], replies[last + 2] = pack('>I1I1I4', 0, 255, #raw), raw
  last = last + 2
end

-- Charges a key once that no other request of the batch uses, as for most requests. Returns false, without a
-- charge, if the key was last used by another limit.
local function charge_single(key_index, limit)
  local key, raw, length, meter = KEYS[key_index], raws[key_index], limit.length, limit.meter
  local a, b, c, d
  if raw then
    if sub(raw, 1, length) ~= limit.tag then
      return false
    end
    a, b, c, d = meter.read(raw, length + 1)
    if not a then
      reply_unreadable(raw)
      return true
    end
  else
    a, b, c, d = meter.fresh()
    raw = ''
  end
  a, b, c, d = meter.take(limit, a, b, c, d)
  if a then
    local bytes, expires_at = meter.write(limit, a, b, c, d)
    call('PSETEX', key, milliseconds_until(expires_at), limit.tag .. bytes)
    replies[last + 1] = char(1, #raw)
  else
    replies[last + 1] = char(0, #raw)
  end
  replies[last + 2] = raw
  last = last + 2
  return true
end

--[[ multi_charge.lua ]]
local charge_multi, finish
if #ARGV > 2 or has_tables then
  charge_multi, finish = multi_charge()
end

local text, at, size = ARGV[2], 1, #ARGV[2]
while at <= size do
  local count, charges, key_index, limit_index = byte(text, at, at + 3)
  if charges == 0 and not has_tables and charge_single(key_index, limits[limit_index]) then
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

return pack('>I7', now) .. table.concat(replies)
