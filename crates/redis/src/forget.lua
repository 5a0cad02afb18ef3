#!lua
-- Forgets what a key has spent.

return redis.call('UNLINK', KEYS[1])
