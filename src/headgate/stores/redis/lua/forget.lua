-- forget: the bucket and its entries in the index are gone, at one moment: were the index told later,
-- it would lose a bucket that somebody opened in between.
-- KEYS bucket, index
redis.call('DEL', KEYS[1])
return redis.call('ZREM', KEYS[2], entries_of(KEYS[1]))
