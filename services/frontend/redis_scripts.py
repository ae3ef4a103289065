"""What must happen to a session in Redis in one step.

Keys, in this order: the record; the session's generation; its tombstone, which survive what the
record does not (see `shared.sessions`); two that say what the session's tenant has in Redis: its
sessions by when they expire, and their sizes, with the sum of those under the empty name, which no
session has; and the session's stored responses (`response_scripts`), which count with its record.
What a full Redis threw away counts until it would have expired.
"""

from shared.sessions import MARK_CHARS

LEAVING_MAX = 1000  # sessions in one step: meanwhile Redis does nothing else

# A session counts no more. `index` and `sizes` are named before.
LEAVE = """
local function leave(session)
  local size = redis.call('HGET', sizes, session)
  redis.call('ZREM', index, session)
  if size then
    redis.call('HDEL', sizes, session)
    if redis.call('HINCRBY', sizes, '', -size) == 0 then redis.call('DEL', sizes) end
  end
end
"""

# What every script that keeps something begins with. Arguments: the generation read when the turn
# began; what is to be kept; its time to live, seconds; the session's name; what the keys of the
# tenant's records begin with, and those of its responses; how many sessions the tenant may have,
# and how many bytes of them, 0: any number.
#
# Above the limits the tenant's least recently used sessions leave: `make_room` says whether there
# is room now. What does not fit then is not kept. It is set first: a full Redis refuses a script's
# first write, and none after it. Redis may have thrown away the sessions' names alone: sizes
# without them would count for ever, see `begin`.
KEEPING = f"""local index, sizes = KEYS[4], KEYS[5]{LEAVE}
local generation = redis.call('GET', KEYS[2])
if generation and generation ~= ARGV[1] then return 0 end
local record, responses = KEYS[1], KEYS[6]
local data, expiry_s, session = ARGV[2], ARGV[3], ARGV[4]
local num_max, bytes_max = tonumber(ARGV[7]), tonumber(ARGV[8])
local now = redis.call('TIME')
local now_s = now[1] + now[2] / 1e6
local function begin()
  if redis.call('EXISTS', index) == 0 then redis.call('DEL', sizes) end
  leave(session)
end
local function fits(size)
  return bytes_max == 0 or size <= bytes_max
end
local function make_room(size)
  local function is_over()
    local num = redis.call('ZCARD', index) + 1
    local total = (redis.call('HGET', sizes, '') or 0) + size
    return (num_max > 0 and num > num_max) or not fits(total)
  end
  for _ = 1, {LEAVING_MAX} do
    local oldest = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')
    local name = oldest[1]
    if not name or not (is_over() or tonumber(oldest[2]) <= now_s) then break end
    local mark = string.sub(redis.sha1hex(name), 1, {MARK_CHARS})
    redis.call('DEL', ARGV[5] .. name, ARGV[6] .. mark)
    leave(name)
  end
  return not is_over()
end
local function enter(size)
  redis.call('ZADD', index, now_s + expiry_s, session)
  redis.call('HSET', sizes, session, size)
  redis.call('HINCRBY', sizes, '', size)
  for _, key in ipairs({{index, sizes, responses}}) do redis.call('EXPIRE', key, expiry_s) end
end
local function num_bytes_of_responses()
  return tonumber(redis.call('HGET', responses, '') or 0)
end
"""

# One more argument: the record's number of turns. Nothing is stored if the session was deleted
# since, or another turn that began with the same record stored its own. A generation that is gone
# was of a deletion before. The number is looked for in the text: the rest of a record is large.
PUT = f"""{KEEPING}
local stored = redis.call('GET', record)
local num_turns = stored and string.match(stored, '"num_turns":(%d+)')
if num_turns and tonumber(num_turns) >= tonumber(ARGV[9]) then return 0 end
local others = num_bytes_of_responses()
local size = #data + others
if fits(size) then redis.call('SET', record, data, 'EX', expiry_s) end
begin()
if fits(size) and make_room(size) then
  enter(size)
  return 1
end
redis.call('DEL', record)
if others > 0 then enter(others) end
return 0
"""

# Arguments: the new generation; how long it and the tombstone stay, seconds; the session's name.
# The tombstone gathers the keys of the blocks of every deletion that has not reached everybody.
# Answers whether there was a record, responses or a tombstone, and the keys.
FORGET = f"""local index, sizes = KEYS[4], KEYS[5]{LEAVE}
local record = redis.call('GET', KEYS[1])
local keys = redis.call('GET', KEYS[3])
local num_responses = redis.call('DEL', KEYS[6])
local found = (record or keys or num_responses > 0) and 1 or 0
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
leave(ARGV[4])
return {{found, keys}}
"""

# Arguments: the generation of the deletion that reached everybody; a later one keeps the tombstone.
SETTLE = """
if redis.call('GET', KEYS[2]) == ARGV[1] then return redis.call('DEL', KEYS[3]) end
return 0
"""
