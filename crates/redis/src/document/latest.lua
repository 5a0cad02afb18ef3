#!lua flags=no-writes
-- Returns the latest version, with its text only if it is not the known one.
--
-- KEYS[1]  the document
-- ARGV     the known number and its hash, or two empty texts
--
-- Returns an empty list if there is no version, the number if it is the known one, else number, metadata and
-- text.

local latest = redis.call('HGET', KEYS[1], 'latest')
if not latest then
  return {}
end
local metadata = redis.call('HGET', KEYS[1], 'v:' .. latest) or ''
if latest == ARGV[1] and metadata:match('^%d+ (%x+) ') == ARGV[2] then
  return {latest}
end
return {latest, metadata, redis.call('HGET', KEYS[1], 't:' .. latest)}
