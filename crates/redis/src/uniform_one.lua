-- Charges one key once: a shorter uniform_batch.lua for the most common call. Every table and function that a
-- script creates takes time in each call.

local call, sub = redis.call, string.sub
local tag, length = ARGV[1], #ARGV[1]
--[[ terms ]]

local key = KEYS[1]
-- Unlike GET, MGET finds nothing in a key that is no string.
local raw = call('MGET', key)[1] or ''
local size, granted = #raw - length, 0
--[[ charge ]]

if granted then
  return pack('>I7I1I1', now, granted, #raw) .. raw
end
return pack('>I7I1I1I4', now, 0, 255, #raw) .. raw
