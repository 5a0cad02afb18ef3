#!lua
-- Deletes the state of a key.

return redis.call('UNLINK', KEYS[1])
