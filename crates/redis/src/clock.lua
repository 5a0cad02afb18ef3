-- The time of the Redis server in microseconds since the epoch, read once per call.
local now
do
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Returns the time to live of a value that expires at `instant`. Redis rounds to milliseconds, and its clock
-- may have been read a little earlier, so 3 ms are added. The result is text, since Redis takes longer to
-- convert a number.
local format = string.format
local function milliseconds_until(instant)
  return format('%d', (instant - now) / 1000 + 3)
end
