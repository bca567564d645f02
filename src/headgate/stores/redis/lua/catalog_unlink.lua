-- unlink: the keys are gone; their memory is freed beside the server's work.
-- KEYS    keys; reply: how many there were
return redis.call('UNLINK', unpack(KEYS))
