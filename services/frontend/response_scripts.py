"""What must happen to the stored responses of a session in Redis in one step.

They are one hash: what was stored, by the response's id; under the id with ``:after`` the response
that it follows, if it follows one; under ``:session`` the session's name; and under the empty name
how many bytes they are.
"""

from services.frontend.redis_scripts import KEEPING, LEAVE

# Two more arguments: the response's id, and that of the one before it or nothing. Answers whether
# it is stored: not if the session was deleted since, or it does not fit the tenant's limits.
STORE = f"""{KEEPING}
local id, before = ARGV[9], ARGV[10]
local others = redis.call('STRLEN', record) + num_bytes_of_responses()
local num_bytes = #data + #id + #before
local size = others + num_bytes
if not fits(size) then return 0 end
redis.call('HSET', responses, id, data, ':session', session)
begin()
if make_room(size) then
  if before ~= '' then redis.call('HSET', responses, id .. ':after', before) end
  redis.call('HINCRBY', responses, '', num_bytes)
  enter(size)
  return 1
end
redis.call('HDEL', responses, id)
if num_bytes_of_responses() == 0 then redis.call('DEL', responses) end
if others > 0 then enter(others) end
return 0
"""

# A response and those before it, the latest first. Keys: the hash. Arguments: its id; how many
# there may be, and how many bytes of them. Answers what ended it, the session's name and what was
# stored: 'whole'; 'missing', with the first that is not there; 'long'.
CHAIN = """
local id, chain, num_bytes = ARGV[1], {}, 0
local num_max, bytes_max = tonumber(ARGV[2]), tonumber(ARGV[3])
local session = redis.call('HGET', KEYS[1], ':session') or ''
while id do
  local size = redis.call('HSTRLEN', KEYS[1], id)
  if size == 0 then return {'missing', id, {}} end
  num_bytes = num_bytes + size
  if #chain == num_max or num_bytes > bytes_max then return {'long', session, {}} end
  chain[#chain + 1] = redis.call('HGET', KEYS[1], id)
  id = redis.call('HGET', KEYS[1], id .. ':after')
end
return {'whole', session, chain}
"""

# Keys: the tenant's sessions, their sizes, the hash. One argument: the response's id. Answers
# whether it was there, the session's name, and whether it was the last of it.
DROP = f"""local index, sizes, responses = KEYS[1], KEYS[2], KEYS[3]{LEAVE}
local id = ARGV[1]
local session = redis.call('HGET', responses, ':session') or ''
local data = redis.call('HSTRLEN', responses, id)
if data == 0 then return {{0, session, 0}} end
local num_bytes = data + #id + redis.call('HSTRLEN', responses, id .. ':after')
redis.call('HDEL', responses, id, id .. ':after')
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
