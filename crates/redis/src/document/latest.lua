#!lua flags=no-writes
-- The latest version, with its text only if it is not the one that is known.
--
-- KEYS[1]  the document
-- ARGV     the number and the hash that are known, or nothing twice
--
-- Answers with nothing if there is no version, with its number if it is known, else with the number,
-- what is kept of it, and the text.

local latest = redis.call('HGET', KEYS[1], 'latest')
if not latest then
  return {}
end
local kept = redis.call('HGET', KEYS[1], 'v:' .. latest) or ''
if latest == ARGV[1] and kept:match('^%d+ (%x+) ') == ARGV[2] then
  return {latest}
end
return {latest, kept, redis.call('HGET', KEYS[1], 't:' .. latest)}
