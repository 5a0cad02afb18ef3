#!lua
-- Stores the report of a node, and deletes expired reports.
--
-- KEYS[1]  a hash of the nodes, each with the time and the expiry of its report (microseconds), and the report
-- ARGV     the node, its report, the lifetime of the report in microseconds

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local nodes = redis.call('HGETALL', KEYS[1])
for index = 1, #nodes, 2 do
  local expires_at = tonumber(nodes[index + 1]:match('^%d+ (%d+) '))
  if not expires_at or expires_at <= now then
    redis.call('HDEL', KEYS[1], nodes[index])
  end
end
local report = string.format('%.0f %.0f ', now, now + ARGV[3]) .. ARGV[2]
redis.call('HSET', KEYS[1], ARGV[1], report)
-- The key expires with the last report.
local ttl = math.ceil(ARGV[3] / 1000) + 1
if redis.call('PTTL', KEYS[1]) < ttl then
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', ttl))
end
return 1
