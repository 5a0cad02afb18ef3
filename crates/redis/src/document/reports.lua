#!lua flags=no-writes
-- Returns the reports of nodes that have not expired.
--
-- KEYS[1]  a hash of the nodes, each with the time and the expiry of its report (microseconds), and the report
--
-- Returns node, report and time of each.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local nodes = redis.call('HGETALL', KEYS[1])
local reply = {}
for index = 1, #nodes, 2 do
  local at, expires_at, report = nodes[index + 1]:match('^(%d+) (%d+) (.*)$')
  if expires_at and tonumber(expires_at) > now then
    reply[#reply + 1] = nodes[index]
    reply[#reply + 1] = report
    reply[#reply + 1] = at
  end
end
return reply
