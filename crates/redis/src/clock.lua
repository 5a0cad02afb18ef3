-- The server's own time decides, in microseconds since the epoch: one reading for the whole call.
local now
do
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- How long to keep what says something until `instant`. Redis rounds to milliseconds and compares
-- with a clock that may have been read a moment earlier, so a counter is kept a little longer. As a
-- text: Redis takes longer to make one of a number.
local format = string.format
local function milliseconds_until(instant)
  return format('%d', (instant - now) / 1000 + 3)
end
