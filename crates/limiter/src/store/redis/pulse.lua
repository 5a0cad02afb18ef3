#!lua
-- Says that a node is alive, and answers with how many there are and its place among them.
--
-- KEYS[1]  the nodes, each with the instant at which it counts as gone
-- ARGV     the node's name, how many milliseconds it may be silent

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2)
-- By name: an order by time would change with every pulse.
local names = redis.call('ZRANGE', KEYS[1], 0, -1)
table.sort(names)
local place = 0
for index, name in ipairs(names) do
  if name == ARGV[1] then
    place = index - 1
  end
end
return {place, #names}
