-- Puts a new version, if the latest is the expected one.
--
-- KEYS[1]  the document
-- ARGV     the retention in versions and in bytes of text, the channel; the expected number or an empty text,
--          the number that the new one has to exceed, metadata, text
--
-- Returns 1, the number and the time of the put; or 0, the latest number and its metadata.

local max_versions, max_bytes, channel, expected, above, metadata, text = unpack(ARGV)

if expected ~= '' and expected ~= to_text(latest) then
  return {'0', to_text(latest), redis.call('HGET', document, 'v:' .. to_text(latest)) or ''}
end
local number = math.max(latest, tonumber(above)) + 1
if number > MAX_NUMBER then
  return redis.error_reply('CORRUPT version numbers end at ' .. to_text(MAX_NUMBER))
end
local time = redis.call('TIME')
local at = to_text(time[1] * 1000000 + time[2])
store(number, at, metadata, text, max_versions, max_bytes, channel)
return {'1', to_text(number), at}
