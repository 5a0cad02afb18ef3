#!lua
-- Notes what a node says of itself, and forgets those who have been silent too long.
--
-- KEYS[1]  the nodes, each with when it spoke, until when that counts (microseconds), and its words
-- ARGV     the node, its words, how many microseconds they count

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local nodes = redis.call('HGETALL', KEYS[1])
for place = 1, #nodes, 2 do
  local over = tonumber(nodes[place + 1]:match('^%d+ (%d+) '))
  if not over or over <= now then
    redis.call('HDEL', KEYS[1], nodes[place])
  end
end
local words = string.format('%.0f %.0f ', now, now + ARGV[3]) .. ARGV[2]
redis.call('HSET', KEYS[1], ARGV[1], words)
-- The key goes with the last of them.
local lifetime = math.ceil(ARGV[3] / 1000) + 1
if redis.call('PTTL', KEYS[1]) < lifetime then
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', lifetime))
end
return 1
