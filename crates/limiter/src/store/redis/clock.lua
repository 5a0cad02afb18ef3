-- The server's own time decides, in microseconds since the epoch: one reading for the whole call.
local now
do
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- How long to keep what says something until `instant`. Redis rounds to milliseconds and compares
-- with a clock that may have been read a moment earlier, so a counter is kept a little longer.
local function milliseconds_until(instant)
  return math.ceil((instant - now) / 1000) + 2
end
