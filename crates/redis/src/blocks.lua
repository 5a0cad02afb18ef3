#!lua
-- Merges changes of the block list, and returns the records that changed since a version.
--
-- KEYS     records by field; fields by the version of their last change; fields by the time of their end; fields of
--          unblocked subjects by version
-- ARGV     the list's life, version and floor that the node has, a name for a new life, and the version up to
--          which the node has restored the list, or 0; then changes: subject, 1 for a penalty, stamp, end of
--          the block in milliseconds, or 0 for an unblock, entry
--
-- A subject has a record of its newest change by an operator, and one of its newest penalty if that is newer. A record
-- is a stamp and an entry. Stamps have a fixed length and are compared as text. The greater stamp wins, so the order of
-- arrival does not matter.
--
-- The newest MAX_UNBLOCKS unblocks are stored, each for a day. The floor is the highest version of an unblock that was
-- deleted. A node with a lower version may have missed that unblock, and gets the whole list.
--
-- The list gets a new life when Redis has lost it, or has a lower version than a node: then a replica without the latest
-- writes became the master. The new life makes nodes restore the list. Versions continue from the highest that any node
-- has.
--
-- Returns life, the version after which records follow (0: all of them), the version that they reach, the latest
-- version, the floor, the version up to which the list has been restored; then field and record of each.

local records, versions, ends, unblocks = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local PAGE_SIZE, MAX_UNBLOCKS, UNBLOCK_TTL, STAMP_BYTES = 1000, 100000, 24 * 3600 * 1000, 50
-- Fields of the records that no subject can have.
local LIFE, VERSION, FLOOR, RESTORED, PENALTY = '#life', '#version', '#floor', '#restored', '#penalty '

local call, to_text = redis.call, function(number) return string.format('%.0f', number) end
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local head = call('HMGET', records, LIFE, VERSION, FLOOR, RESTORED)
local life = head[1] or ''
local version, floor, restored = tonumber(head[2] or 0), tonumber(head[3] or 0), tonumber(head[4] or 0)
local known_life, known_version, known_floor = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local function drop(field)
  floor = math.max(floor, tonumber(call('ZSCORE', unblocks, field) or 0))
  call('HDEL', records, field)
  call('ZREM', versions, field)
  call('ZREM', ends, field)
  call('ZREM', unblocks, field)
end

local function stamp_of(field)
  local record = call('HGET', records, field) or ''
  -- A release without stamps stored the entry alone. It is older than any record with a stamp.
  return string.sub(record, 1, 1) == '{' and '' or string.sub(record, 1, STAMP_BYTES)
end

for _, field in ipairs(call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, PAGE_SIZE)) do
  drop(field)
end

if life ~= '' and life == known_life and known_version > version then
  life, restored = ARGV[4], version
end
version = math.max(version, known_version)

for index = 6, #ARGV, 5 do
  local subject, penalty, stamp, ends_at, entry = unpack(ARGV, index, index + 4)
  local field = penalty == '1' and PENALTY .. subject or subject
  if stamp > stamp_of(field) and stamp > stamp_of(subject) then
    version = version + 1
    call('HSET', records, field, stamp .. entry)
    call('ZADD', versions, to_text(version), field)
    if ends_at == '0' then
      call('ZADD', ends, to_text(now + UNBLOCK_TTL), field)
      call('ZADD', unblocks, to_text(version), field)
    else
      call('ZADD', ends, ends_at, field)
      call('ZREM', unblocks, field)
    end
    local other = PENALTY .. subject
    if field == subject and stamp_of(other) < stamp then
      drop(other)
    end
  end
end
for _, field in ipairs(call('ZRANGE', unblocks, 0, -1 - MAX_UNBLOCKS)) do
  drop(field)
end

if #ARGV > 5 and life == '' then
  life = ARGV[4]
end
restored = math.max(restored, tonumber(ARGV[5]))
local new_head = {life, to_text(version), to_text(floor), to_text(restored)}
local same = life == head[1] and new_head[2] == head[2] and new_head[3] == head[3] and new_head[4] == head[4]
if life ~= '' and not same then
  call('HSET', records, LIFE, life, VERSION, new_head[2], FLOOR, new_head[3], RESTORED, new_head[4])
end
if #ARGV > 5 then
  -- All keys expire an hour after the last record.
  local last_end = call('ZREVRANGE', ends, 0, 0, 'WITHSCORES')[2]
  for _, key in ipairs(KEYS) do
    call('PEXPIREAT', key, to_text((last_end or now) + 3600000))
  end
end

local since = 0
if life == known_life and (known_version >= floor or known_floor == floor) then
  since = known_version
end
local changed =
  call('ZRANGEBYSCORE', versions, '(' .. to_text(since), '+inf', 'WITHSCORES', 'LIMIT', 0, PAGE_SIZE)
local reached = #changed < 2 * PAGE_SIZE and version or tonumber(changed[#changed])
local reply = {life, to_text(since), to_text(reached), new_head[2], new_head[3], new_head[4]}
for index = 1, #changed, 2 do
  reply[#reply + 1] = changed[index]
  reply[#reply + 1] = call('HGET', records, changed[index]) or ''
end
return reply
