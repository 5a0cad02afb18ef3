#!lua
-- Begins what changes a document: `latest` is the number of its latest version, 0 without any.
--
-- A document is one hash, so that it is there as a whole or not at all:
--   latest   the number of the latest version
--   v:N      when version N was put (microseconds), the hash of its text, and who and why as JSON
--   t:N      its text

local document = KEYS[1]
-- The last whole number that Lua is sure of.
local LAST = 9007199254740991

local function spell(number)
  return string.format('%.0f', number)
end

local latest = redis.call('HGET', document, 'latest') or '0'
if not latest:find('^%d+$') or tonumber(latest) > LAST then
  return redis.error_reply('CORRUPT its latest version must be a number up to ' .. spell(LAST))
end
latest = tonumber(latest)

-- Keeps a version as the latest, forgets old ones, and tells whoever listens.
local function keep(number, at, words, text, most, room, channel)
  redis.call('HSET', document, 'latest', spell(number), 'v:' .. spell(number), at .. ' ' .. words,
    't:' .. spell(number), text)
  local numbers = {}
  for _, field in ipairs(redis.call('HKEYS', document)) do
    numbers[#numbers + 1] = tonumber(field:match('^v:(%d+)$'))
  end
  table.sort(numbers, function(one, other) return one > other end)
  local size = 0
  for place, old in ipairs(numbers) do
    size = size + redis.call('HSTRLEN', document, 't:' .. spell(old))
    if place > 1 and (place > tonumber(most) or size > tonumber(room)) then
      redis.call('HDEL', document, 'v:' .. spell(old), 't:' .. spell(old))
    end
  end
  -- Who may write and not publish has changed the document all the same: others look now and then.
  redis.pcall('PUBLISH', channel, spell(number))
end
