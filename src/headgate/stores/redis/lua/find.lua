-- find: buckets that exist, by their entries in the index.
-- KEYS    the index
-- ARGV    from where to where the entries reach (as ZRANGEBYLEX takes them), how many to look at
-- reply   the last entry that was looked at, or '' if there are no more; then keys of buckets
local entries = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
local reply = { #entries == tonumber(ARGV[3]) and entries[#entries] or '' }
for _, entry in ipairs(entries) do
    reply[#reply + 1] = live_bucket(KEYS[1], entry)
end
return reply
