"""What must happen to the stored responses of a session in Redis in one step.

They are one hash: what was answered, by the response's id; under the id with ``:items`` what was
said in it, which is all that is read to go on from it, with ``:num`` how many items that is, and
with ``:after`` the response that it follows, if it follows one, and with ``:run`` a word on one
that is made in the background, until it is there (see `core.background`); under ``:session`` the
session's name; and under the empty name how many bytes they are, but for such words.
"""

from services.frontend.redis_scripts import KEEPING, LEAVE

# How many bytes of a response count. `responses` is named before.
NUM_BYTES = """
local function num_bytes_of(id)
  local num_bytes = redis.call('HSTRLEN', responses, id) + #id
  for _, part in ipairs({':items', ':after'}) do
    num_bytes = num_bytes + redis.call('HSTRLEN', responses, id .. part)
  end
  return num_bytes
end
local function remove(id)
  for _, part in ipairs({'', ':items', ':num', ':after', ':run'}) do
    redis.call('HDEL', responses, id .. part)
  end
end
"""

# More arguments: the response's id; that of the one before it, or nothing; its items, and how many
# they are; and which this is: all of it, its begin in the background, or what takes that one's
# place. Answers whether it is stored: not if the session was deleted since, or what it follows, or
# it does not fit the tenant's limits, or the begun one is not made any more.
STORE = f"""{KEEPING}{NUM_BYTES}
local id, before, items, num_items, which = ARGV[9], ARGV[10], ARGV[11], ARGV[12], ARGV[13]
if before ~= '' and redis.call('HEXISTS', responses, before) == 0 then return 0 end
local begun = 0
if which == 'rest' then
  if not tonumber(redis.call('HGET', responses, id .. ':run')) then return 0 end
  begun = num_bytes_of(id)
end
local others = redis.call('STRLEN', record) + num_bytes_of_responses() - begun
local num_bytes = #data + #items + #id + #before
local size = others + num_bytes
if not fits(size) then return 0 end
if begun > 0 then
  remove(id)
  redis.call('HINCRBY', responses, '', -begun)
end
redis.call('HSET', responses, id, data, ':session', session)
redis.call('HSET', responses, id .. ':items', items, id .. ':num', num_items)
if which == 'begin' then redis.call('HSET', responses, id .. ':run', now[1]) end
begin()
if make_room(size) then
  if before ~= '' then redis.call('HSET', responses, id .. ':after', before) end
  redis.call('HINCRBY', responses, '', num_bytes)
  enter(size)
  return 1
end
remove(id)
if num_bytes_of_responses() == 0 then redis.call('DEL', responses) end
if others > 0 then enter(others) end
return 0
"""

# What was said in a response and in those before it, the latest first. Keys: the hash. Arguments:
# its id; how many responses there may be, and how many bytes and items of them. Answers what ended
# it, the session's name and the items: 'whole'; 'missing', with the first that is not there, or
# 'unfinished', with one that was not made to its end; 'long'.
CHAIN = """
local id, chain, num_bytes, num_items = ARGV[1], {}, 0, 0
local num_max, bytes_max, items_max = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local session = redis.call('HGET', KEYS[1], ':session') or ''
while id do
  local size = redis.call('HSTRLEN', KEYS[1], id .. ':items')
  if size == 0 then return {'missing', id, {}} end
  if redis.call('HEXISTS', KEYS[1], id .. ':run') == 1 then return {'unfinished', id, {}} end
  num_bytes = num_bytes + size
  num_items = num_items + (redis.call('HGET', KEYS[1], id .. ':num') or 0)
  local is_long = num_bytes > bytes_max or num_items > items_max
  if #chain == num_max or is_long then return {'long', session, {}} end
  chain[#chain + 1] = redis.call('HGET', KEYS[1], id .. ':items')
  id = redis.call('HGET', KEYS[1], id .. ':after')
end
return {'whole', session, chain}
"""

# A response: what was answered, its items, the word on it, and what time it is. Keys: the hash. One
# argument: its id.
READ = """
local told = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[1] .. ':items', ARGV[1] .. ':run')
told[4] = redis.call('TIME')[1]
return told
"""

# Another word on a response that is made, see `core.background`. Keys: the hash. Arguments: its id;
# the word, or nothing: that it is still made. Answers whether it was made until now.
SAY = """
local run, word = ARGV[1] .. ':run', ARGV[2]
if not tonumber(redis.call('HGET', KEYS[1], run)) then return 0 end
redis.call('HSET', KEYS[1], run, word ~= '' and word or redis.call('TIME')[1])
return 1
"""

# Keys: the tenant's sessions, their sizes, the hash. One argument: the response's id. Answers
# whether it was there, the session's name, and whether it was the last of it.
DROP = f"""local index, sizes, responses = KEYS[1], KEYS[2], KEYS[3]{LEAVE}{NUM_BYTES}
local id = ARGV[1]
local session = redis.call('HGET', responses, ':session') or ''
if redis.call('HEXISTS', responses, id) == 0 then return {{0, session, 0}} end
local num_bytes = num_bytes_of(id)
remove(id)
local left = redis.call('HINCRBY', responses, '', -num_bytes)
if left <= 0 then redis.call('DEL', responses) end
local size = tonumber(redis.call('HGET', sizes, session) or 0)
if size > num_bytes then
  redis.call('HINCRBY', sizes, '', -num_bytes)
  redis.call('HINCRBY', sizes, session, -num_bytes)
else
  leave(session)
end
return {{1, session, left <= 0 and 1 or 0}}
"""
