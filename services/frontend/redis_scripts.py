"""What must happen to a session in Redis in one step.

Keys, in this order: the record; the session's generation; its tombstone. Next to the record they
survive what the record does not: see `shared.sessions`.
"""

# Arguments: the new generation; how long it and the tombstone stay, seconds. The tombstone gathers
# the keys of the blocks of every deletion that has not reached everybody. Answers whether there was
# a record or a tombstone, and the keys.
FORGET = """
local record = redis.call('GET', KEYS[1])
local keys = redis.call('GET', KEYS[3])
local found = (record or keys) and 1 or 0
keys = keys or ''
if record then
  local ok, fields = pcall(cjson.decode, record)
  if ok and type(fields) == 'table' and type(fields['block_keys']) == 'string' then
    keys = keys .. fields['block_keys']
  end
  redis.call('DEL', KEYS[1])
end
redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[2])
redis.call('SET', KEYS[3], keys, 'EX', ARGV[3])
return {found, keys}
"""

# Arguments: the generation read when the turn began; the record; its time to live, seconds. Nothing
# is stored if the session was deleted since. A generation that is gone was of a deletion before.
PUT = """
local generation = redis.call('GET', KEYS[2])
if generation and generation ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return 1
"""

# Arguments: the generation of the deletion that reached everybody; a later one keeps the tombstone.
SETTLE = """
if redis.call('GET', KEYS[2]) == ARGV[1] then return redis.call('DEL', KEYS[3]) end
return 0
"""
