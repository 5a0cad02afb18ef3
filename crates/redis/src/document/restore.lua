-- Puts a version back under its own number, unless the latest is as new.
--
-- KEYS[1]  the document
-- ARGV     how many versions and how many bytes of text are kept, the channel; the number, when it was
--          put, hash and words, text
--
-- Answers with whether it did.

local most, room, channel, number, at, words, text = unpack(ARGV)

number = tonumber(number)
if number > LAST then
  return redis.error_reply('CORRUPT version numbers end at ' .. spell(LAST))
end
if number <= latest then
  return 0
end
keep(number, at, words, text, most, room, channel)
return 1
