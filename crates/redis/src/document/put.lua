-- Puts a version after the latest, if that is the one expected.
--
-- KEYS[1]  the document
-- ARGV     how many versions and how many bytes of text are kept, the channel; the expected number or
--          nothing, the number to be above, hash and words, text
--
-- Answers with 1, the number and when it was put; or with 0, the latest number and what is kept of it.

local most, room, channel, expected, above, words, text = unpack(ARGV)

if expected ~= '' and expected ~= spell(latest) then
  return {'0', spell(latest), redis.call('HGET', document, 'v:' .. spell(latest)) or ''}
end
local number = math.max(latest, tonumber(above)) + 1
if number > LAST then
  return redis.error_reply('CORRUPT version numbers end at ' .. spell(LAST))
end
local time = redis.call('TIME')
local at = spell(time[1] * 1000000 + time[2])
keep(number, at, words, text, most, room, channel)
return {'1', spell(number), at}
