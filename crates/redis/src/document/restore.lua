-- Restores a version under its own number, if the latest has a lower one.
--
-- KEYS[1]  the document
-- ARGV     the retention in versions and in bytes of text, the channel; the number, the time of the put,
--          metadata, text
--
-- Returns 1 if the version was restored, else 0.

local max_versions, max_bytes, channel, number, at, metadata, text = unpack(ARGV)

number = tonumber(number)
if number > MAX_NUMBER then
  return redis.error_reply('CORRUPT version numbers end at ' .. to_text(MAX_NUMBER))
end
if number <= latest then
  return 0
end
store(number, at, metadata, text, max_versions, max_bytes, channel)
return 1
