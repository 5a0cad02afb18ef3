#!lua
-- Records the heartbeat of a node. Returns the index of the node among all nodes, the number of nodes, and the
-- time of its first heartbeat without a gap since then.
--
-- KEYS[1]  a sorted set of the nodes: `name@first heartbeat`, by the time at which the heartbeat expires
-- ARGV     the name of the node, and the heartbeat timeout in milliseconds; 0 removes the node

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local members = redis.call('ZRANGE', KEYS[1], 0, -1)
local prefix, own_member = ARGV[1] .. '@', nil
for _, member in ipairs(members) do
  if string.sub(member, 1, #prefix) == prefix then
    own_member = member
  end
end
if ARGV[2] == '0' then
  if own_member then
    redis.call('ZREM', KEYS[1], own_member)
  end
  return {0, 0, 0}
end
if not own_member then
  own_member = prefix .. string.format('%.0f', time[1] * 1000000 + time[2])
  table.insert(members, own_member)
end
redis.call('ZADD', KEYS[1], now + ARGV[2], own_member)
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2)
-- Sorted by name: an order by time would change with every heartbeat.
table.sort(members)
local node_index = 0
for position, member in ipairs(members) do
  if member == own_member then
    node_index = position - 1
  end
end
return {node_index, #members, tonumber(string.sub(own_member, #prefix + 1))}
