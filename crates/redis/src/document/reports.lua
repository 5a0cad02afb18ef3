#!lua flags=no-writes
-- What nodes say of themselves, as long as it counts.
--
-- KEYS[1]  the nodes, each with when it spoke, until when that counts (microseconds), and its words
--
-- Answers with node, words and when it spoke, of each.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local nodes = redis.call('HGETALL', KEYS[1])
local answer = {}
for place = 1, #nodes, 2 do
  local at, over, words = nodes[place + 1]:match('^(%d+) (%d+) (.*)$')
  if over and tonumber(over) > now then
    answer[#answer + 1] = nodes[place]
    answer[#answer + 1] = words
    answer[#answer + 1] = at
  end
end
return answer
