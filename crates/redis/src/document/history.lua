#!lua flags=no-writes
-- Returns the newest versions without their texts.
--
-- KEYS[1]  the document
-- ARGV     the maximum number of versions
--
-- Returns number and metadata of each version, the newest first.

local numbers = {}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  numbers[#numbers + 1] = field:match('^v:(%d+)$')
end
table.sort(numbers, function(one, other) return tonumber(one) > tonumber(other) end)
local reply = {}
for index = 1, math.min(#numbers, tonumber(ARGV[1])) do
  reply[#reply + 1] = numbers[index]
  reply[#reply + 1] = redis.call('HGET', KEYS[1], 'v:' .. numbers[index])
end
return reply
