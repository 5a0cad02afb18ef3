#!lua
-- Merges changes of the block list, and returns the records that changed since a version.
--
-- KEYS     records by field; fields by the version that changed them; fields by when they are over; fields of
--          unblocked subjects by version
-- ARGV     the list's life, the version and the floor in it that the node has, a name for a new life, and the
--          version up to which the node has restored the list, or 0; then changes: subject, 1 for a penalty,
--          stamp, milliseconds at which the block is over, or 0 for an unblock, entry
--
-- A subject has a record of its newest change by an operator, and one of its newest penalty if that is newer. A record
-- is a stamp and an entry. Stamps have a fixed length and are compared as text: the greater one stays, in whatever
-- order they arrive.
--
-- An unblock is remembered for a day, the newest MOST_REMOVED of them. The floor is the highest version of those that
-- are no longer remembered: a node that is further behind may lack one of them, and gets the whole list.
--
-- A Redis that lost the list begins another life, and so does one that has fewer versions than a node has seen: a
-- replica without the latest writes took over. By that nodes know that the list has to be restored. Versions go on
-- from the highest that any node has seen.
--
-- Returns life, the version after which records follow (0: all of them), the version that they reach, the latest
-- version, the floor, the version up to which the list has been restored; then field and record of each.

local records, versions, ends, removed = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local PAGE, MOST_REMOVED, REMEMBERED, STAMP = 1000, 100000, 24 * 3600 * 1000, 50
-- Kept among the records, under fields that no subject has.
local LIFE, VERSION, FLOOR, RESTORED, PENALTY = '#life', '#version', '#floor', '#restored', '#penalty '

local call, text = redis.call, function(number) return string.format('%.0f', number) end
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local head = call('HMGET', records, LIFE, VERSION, FLOOR, RESTORED)
local life = head[1] or ''
local version, floor, restored = tonumber(head[2] or 0), tonumber(head[3] or 0), tonumber(head[4] or 0)
local known_life, seen, known_floor = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local function drop(field)
  floor = math.max(floor, tonumber(call('ZSCORE', removed, field) or 0))
  call('HDEL', records, field)
  call('ZREM', versions, field)
  call('ZREM', ends, field)
  call('ZREM', removed, field)
end

local function stamp_of(field)
  local record = call('HGET', records, field) or ''
  -- A record of a release without stamps is an entry alone, older than any other.
  return string.sub(record, 1, 1) == '{' and '' or string.sub(record, 1, STAMP)
end

for _, field in ipairs(call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, PAGE)) do
  drop(field)
end

if life ~= '' and life == known_life and seen > version then
  life, restored = ARGV[4], version
end
version = math.max(version, seen)

for place = 6, #ARGV, 5 do
  local subject, penalty, stamp, over, entry = unpack(ARGV, place, place + 4)
  local field = penalty == '1' and PENALTY .. subject or subject
  if stamp > stamp_of(field) and stamp > stamp_of(subject) then
    version = version + 1
    call('HSET', records, field, stamp .. entry)
    call('ZADD', versions, text(version), field)
    if over == '0' then
      call('ZADD', ends, text(now + REMEMBERED), field)
      call('ZADD', removed, text(version), field)
    else
      call('ZADD', ends, over, field)
      call('ZREM', removed, field)
    end
    local other = PENALTY .. subject
    if field == subject and stamp_of(other) < stamp then
      drop(other)
    end
  end
end
for _, field in ipairs(call('ZRANGE', removed, 0, -1 - MOST_REMOVED)) do
  drop(field)
end

if #ARGV > 5 and life == '' then
  life = ARGV[4]
end
restored = math.max(restored, tonumber(ARGV[5]))
local new_head = {life, text(version), text(floor), text(restored)}
local same = life == head[1] and new_head[2] == head[2] and new_head[3] == head[3] and new_head[4] == head[4]
if life ~= '' and not same then
  call('HSET', records, LIFE, life, VERSION, new_head[2], FLOOR, new_head[3], RESTORED, new_head[4])
end
if #ARGV > 5 then
  -- Everything goes with the last record, an hour later.
  local longest = call('ZREVRANGE', ends, 0, 0, 'WITHSCORES')[2]
  for _, key in ipairs(KEYS) do
    call('PEXPIREAT', key, text((longest or now) + 3600000))
  end
end

local since = 0
if life == known_life and (seen >= floor or known_floor == floor) then
  since = seen
end
local changed =
  call('ZRANGEBYSCORE', versions, '(' .. text(since), '+inf', 'WITHSCORES', 'LIMIT', 0, PAGE)
local reached = #changed < 2 * PAGE and version or tonumber(changed[#changed])
local answer = {life, text(since), text(reached), new_head[2], new_head[3], new_head[4]}
for place = 1, #changed, 2 do
  answer[#answer + 1] = changed[place]
  answer[#answer + 1] = call('HGET', records, changed[place]) or ''
end
return answer
