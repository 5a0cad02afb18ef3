#!lua flags=no-writes
-- The newest versions, without texts.
--
-- KEYS[1]  the document
-- ARGV     how many at most
--
-- Answers with number and what is kept of each, the newest first.

local numbers = {}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  numbers[#numbers + 1] = field:match('^v:(%d+)$')
end
table.sort(numbers, function(one, other) return tonumber(one) > tonumber(other) end)
local answer = {}
for place = 1, math.min(#numbers, tonumber(ARGV[1])) do
  answer[#answer + 1] = numbers[place]
  answer[#answer + 1] = redis.call('HGET', KEYS[1], 'v:' .. numbers[place])
end
return answer
