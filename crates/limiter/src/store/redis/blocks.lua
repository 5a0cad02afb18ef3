#!lua
-- Takes in changes of the block list, and answers with what changed since a version.
--
-- KEYS     entries by name, names by the version that changed them, names by when they are over
-- ARGV     the list's life and the version in it that the node has, a name for a new life; then changes:
--          name, milliseconds at which the entry is over, whether it is a penalty, entry; no entry for
--          one removed
--
-- Answers with the life, the version that the answer reaches, the latest version, and name and entry
-- of each change, without an entry for one removed. One that was removed is remembered until it would
-- have been over: until then another node may still have it. A Redis that lost the list begins another
-- life, by which nodes know that they have to publish theirs anew.

local entries, versions, ends = KEYS[1], KEYS[2], KEYS[3]
local MOST = 1000

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

for _, name in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, MOST)) do
  redis.call('HDEL', entries, name)
  redis.call('ZREM', versions, name)
  redis.call('ZREM', ends, name)
end

-- Kept among the entries, under names that none has.
local LIFE, VERSION = '#life', '#version'
local life = redis.call('HGET', entries, LIFE) or ''
local version = tonumber(redis.call('HGET', entries, VERSION) or '0')
for place = 4, #ARGV, 4 do
  local name, over, entry = ARGV[place], ARGV[place + 1], ARGV[place + 3]
  local known = redis.call('ZSCORE', ends, name)
  if entry == '' then
    over = known
  elseif ARGV[place + 2] == '1' and known and known + 0 > over + 0 then
    -- A penalty never ends a block sooner.
    over = nil
  end
  if over then
    version = version + 1
    redis.call('HSET', entries, name, entry)
    redis.call('ZADD', versions, version, name)
    redis.call('ZADD', ends, over, name)
  end
end
if #ARGV > 3 then
  if life == '' then
    life = ARGV[3]
  end
  redis.call('HSET', entries, LIFE, life, VERSION, version)
  -- Everything goes with the last entry, an hour later.
  local longest = redis.call('ZREVRANGE', ends, 0, 0, 'WITHSCORES')[2]
  for _, key in ipairs(KEYS) do
    redis.call('PEXPIREAT', key, string.format('%.0f', (longest or now) + 3600000))
  end
end

local since = life == ARGV[1] and tonumber(ARGV[2]) or 0
local after = '(' .. string.format('%.0f', since)
local changed =
  redis.call('ZRANGEBYSCORE', versions, after, '+inf', 'WITHSCORES', 'LIMIT', 0, MOST)
local reached = #changed < 2 * MOST and version or tonumber(changed[#changed])
local answer = {life, string.format('%.0f', reached), string.format('%.0f', version)}
for place = 1, #changed, 2 do
  answer[#answer + 1] = changed[place]
  answer[#answer + 1] = redis.call('HGET', entries, changed[place]) or ''
end
return answer
