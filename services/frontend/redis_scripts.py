"""What must happen to a session in Redis in one step.

Keys, in this order: the record; the session's generation; its tombstone, which survive what the
record does not (see `shared.sessions`); and two that say what the session's tenant has in Redis:
its sessions by when their records expire, and the records' sizes, with their sum under the empty
name, which no session has. A record that a full Redis threw away counts until it would have
expired.
"""

LEAVING_MAX = 1000  # records in one step: meanwhile Redis does nothing else

# A session's record counts no more.
_LEAVE = """
local function leave(index, sizes, session)
  local size = redis.call('HGET', sizes, session)
  redis.call('ZREM', index, session)
  if size then
    redis.call('HDEL', sizes, session)
    if redis.call('HINCRBY', sizes, '', -size) == 0 then redis.call('DEL', sizes) end
  end
end
"""

# Arguments: the new generation; how long it and the tombstone stay, seconds; the session's name.
# The tombstone gathers the keys of the blocks of every deletion that has not reached everybody.
# Answers whether there was a record or a tombstone, and the keys.
FORGET = f"""{_LEAVE}
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
leave(KEYS[4], KEYS[5], ARGV[4])
return {{found, keys}}
"""

# Arguments: the generation read when the turn began; the record; its time to live, seconds; the
# session's name; what the keys of the tenant's records begin with; how many there may be, and their
# bytes, 0: any number; the record's number of turns. Nothing is stored if the session was deleted
# since, or another turn that began with the same record stored its own. A generation that is gone
# was of a deletion before. The number is looked for in the text: the rest of a record is large.
#
# Above the limits the tenant's least recently used records leave. What does not fit then is not
# kept. The record is set first: a full Redis refuses a script's first write, and none after it.
# Redis may have thrown away the sessions' names alone: sizes without them would count for ever.
PUT = f"""{_LEAVE}
local generation = redis.call('GET', KEYS[2])
if generation and generation ~= ARGV[1] then return 0 end
local stored = redis.call('GET', KEYS[1])
local num_turns = stored and string.match(stored, '"num_turns":(%d+)')
if num_turns and tonumber(num_turns) >= tonumber(ARGV[8]) then return 0 end
local index, sizes, session, prefix = KEYS[4], KEYS[5], ARGV[4], ARGV[5]
local num_max, bytes_max = tonumber(ARGV[6]), tonumber(ARGV[7])
local size = #ARGV[2]
local fits = bytes_max == 0 or size <= bytes_max
if fits then redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3]) end
if redis.call('EXISTS', index) == 0 then redis.call('DEL', sizes) end
leave(index, sizes, session)
if not fits then
  redis.call('DEL', KEYS[1])
  return 0
end
local function is_over()
  local num = redis.call('ZCARD', index) + 1
  local total = (redis.call('HGET', sizes, '') or 0) + size
  return (num_max > 0 and num > num_max) or (bytes_max > 0 and total > bytes_max)
end
local now = redis.call('TIME')
local now_s = now[1] + now[2] / 1e6
for _ = 1, {LEAVING_MAX} do
  local oldest = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')
  if not oldest[1] or not (is_over() or tonumber(oldest[2]) <= now_s) then break end
  redis.call('DEL', prefix .. oldest[1])
  leave(index, sizes, oldest[1])
end
if is_over() then
  redis.call('DEL', KEYS[1])
  return 0
end
redis.call('ZADD', index, now_s + ARGV[3], session)
redis.call('HSET', sizes, session, size)
redis.call('HINCRBY', sizes, '', size)
redis.call('EXPIRE', index, ARGV[3])
redis.call('EXPIRE', sizes, ARGV[3])
return 1
"""

# Arguments: the generation of the deletion that reached everybody; a later one keeps the tombstone.
SETTLE = """
if redis.call('GET', KEYS[2]) == ARGV[1] then return redis.call('DEL', KEYS[3]) end
return 0
"""
