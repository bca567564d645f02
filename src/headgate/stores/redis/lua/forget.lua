-- forget: the bucket and its place in the entity's list are gone, at one moment: were the list told
-- later, it would lose a bucket that somebody opened in between.
-- KEYS bucket, the entity's list of buckets
redis.call('DEL', KEYS[1])
return redis.call('SREM', KEYS[2], KEYS[1])
