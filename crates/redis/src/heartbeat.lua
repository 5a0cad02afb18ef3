#!lua
-- Says that a node is alive, and answers with its place among all nodes, how many there are, and since
-- when it has been known without a gap.
--
-- KEYS[1]  the nodes, each with the instant at which it counts as gone. A node is there by its name and
--          the instant since which it has been
-- ARGV     the node's name, how many milliseconds it may be silent; 0 when it goes

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local names = redis.call('ZRANGE', KEYS[1], 0, -1)
local prefix, own = ARGV[1] .. '@', nil
for _, name in ipairs(names) do
  if string.sub(name, 1, #prefix) == prefix then
    own = name
  end
end
if ARGV[2] == '0' then
  if own then
    redis.call('ZREM', KEYS[1], own)
  end
  return {0, 0, 0}
end
if not own then
  own = prefix .. string.format('%.0f', time[1] * 1000000 + time[2])
  table.insert(names, own)
end
redis.call('ZADD', KEYS[1], now + ARGV[2], own)
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2)
-- By name: an order by time would change with every pulse.
table.sort(names)
local place = 0
for index, name in ipairs(names) do
  if name == own then
    place = index - 1
  end
end
return {place, #names, tonumber(string.sub(own, #prefix + 1))}
