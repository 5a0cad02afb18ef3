#!lua
-- The beginning of every script that changes a document. `latest` is the number of the latest version, 0 without
-- any.
--
-- A document is one Redis hash, so it is lost as a whole or not at all:
--   latest   the number of the latest version
--   v:N      the metadata of version N: the time of the put (microseconds), the hash of the text, and author
--            and note as JSON
--   t:N      the text of version N

local document = KEYS[1]
-- The greatest integer that Lua represents exactly.
local MAX_NUMBER = 9007199254740991

local function to_text(number)
  return string.format('%.0f', number)
end

local latest = redis.call('HGET', document, 'latest') or '0'
if not latest:find('^%d+$') or tonumber(latest) > MAX_NUMBER then
  return redis.error_reply('CORRUPT its latest version must be a number up to ' .. to_text(MAX_NUMBER))
end
latest = tonumber(latest)

-- Stores a version as the latest, deletes old versions beyond the retention, and publishes the number.
local function store(number, at, metadata, text, max_versions, max_bytes, channel)
  redis.call('HSET', document, 'latest', to_text(number), 'v:' .. to_text(number), at .. ' ' .. metadata,
    't:' .. to_text(number), text)
  local numbers = {}
  for _, field in ipairs(redis.call('HKEYS', document)) do
    numbers[#numbers + 1] = tonumber(field:match('^v:(%d+)$'))
  end
  table.sort(numbers, function(one, other) return one > other end)
  local size = 0
  for index, old in ipairs(numbers) do
    size = size + redis.call('HSTRLEN', document, 't:' .. to_text(old))
    if index > 1 and (index > tonumber(max_versions) or size > tonumber(max_bytes)) then
      redis.call('HDEL', document, 'v:' .. to_text(old), 't:' .. to_text(old))
    end
  end
  -- Without the permission to publish, the version is stored all the same: other nodes poll at intervals.
  redis.pcall('PUBLISH', channel, to_text(number))
end
