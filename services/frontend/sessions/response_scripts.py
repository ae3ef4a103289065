"""What must happen to the stored responses of a session in Redis in one step.

They are one hash: what was answered, by the response's id; under the id with ``:items`` what was
said in it, which is all that is read to go on from it, with ``:num`` how many items that is, and
with ``:after`` the response that it follows, if it follows one, and with ``:run`` a word on one
that is made in the background, until it is there (see `core.sessions.stored_responses`); with
``:e0`` and further numbers its events, if it is streamed, and with ``:events`` how many bytes
those are; under ``:session`` the session's name; and under the empty name how many bytes they are,
but for such words. A conversation stands there, too (`conversation_scripts`).
"""

from services.frontend.core.sessions.stored_responses import WORD_BYTES_MAX
from services.frontend.sessions.redis_scripts import ACCOUNTING, FIELD_BYTES, KEEPING

# What a response takes. One that is made in the background has a word beside it, of any length.
PARTS = rf"""
local function num_bytes_of_response(data, items, id, before, has_word)
  local num = data + items + before + 5 * #id + {5 * (FIELD_BYTES + 8)}
  return has_word and num + {WORD_BYTES_MAX} or num
end
local function num_bytes_of_stored(id)
  local function length(part) return call('HSTRLEN', keys.responses, id .. part) end
  local has_word = call('HEXISTS', keys.responses, id .. ':run') == 1
  return num_bytes_of_response(length(''), length(':items'), id, length(':after'), has_word)
end
local function remove(id)
  local left = call('HINCRBY', keys.responses, '', -num_bytes_of_stored(id))
  for _, part in ipairs({{'', ':items', ':num', ':after', ':run'}}) do
    call('HDEL', keys.responses, id .. part)
  end
  if left <= 0 then call('DEL', keys.responses) end
  return left <= 0
end
local function remove_events(id)
  local num, at = call('HSTRLEN', keys.responses, id .. ':events'), 0
  if num == 0 then return end
  num = num + #id + {FIELD_BYTES + 16}
  call('HDEL', keys.responses, id .. ':events')
  while call('HEXISTS', keys.responses, id .. ':e' .. at) == 1 do
    num = num + call('HSTRLEN', keys.responses, id .. ':e' .. at) + #id + {FIELD_BYTES + 16}
    call('HDEL', keys.responses, id .. ':e' .. at)
    at = at + 1
  end
  call('HINCRBY', keys.responses, '', -num)
end
"""

# More arguments: the response's id; that of the one before it, or nothing; its items, and how many
# they are; and which this is: all of it, its begin in the background, or what takes that one's
# place. Answers whether it is stored: not if the session was deleted since, or what it follows, or
# it does not fit the limits, or the begun one is not made any more.
STORE = rf"""{KEEPING}{PARTS}
local id, before, items, num_items, which = ARGV[9], ARGV[10], ARGV[11], ARGV[12], ARGV[13]
if was_deleted() then return 0 end
if before ~= '' and call('HEXISTS', keys.responses, before) == 0 then return 0 end
local begun = 0
if which == 'rest' then
  if not tonumber(call('HGET', keys.responses, id .. ':run')) then return 0 end
  begun = num_bytes_of_stored(id)
end
local num = num_bytes_of_response(#data, #items, id, #before, which == 'begin')
if not fits(num_bytes_of(session, keys, nil, num_bytes_of_responses(keys) - begun + num)) then
  return 0
end
if begun > 0 then remove(id) end
call('HSET', keys.responses, id, data, ':session', session, id .. ':items', items,
  id .. ':num', num_items)
if before ~= '' then call('HSET', keys.responses, id .. ':after', before) end
if which == 'begin' then call('HSET', keys.responses, id .. ':run', now[1]) end
call('HINCRBY', keys.responses, '', num)
enter()
if make_room() then return 1 end
remove_events(id)
remove(id)
account(tenant, session, keys)
return 0
"""

# More arguments: the response's id; how many of its events' parts are there; how many bytes they
# may be. What is kept is another part, while the response is made and when it is there. Answers
# whether it is.
ADD_EVENTS = rf"""{KEEPING}{PARTS}
local id, at, max = ARGV[9], ARGV[10], tonumber(ARGV[11])
local word, name = call('HGET', keys.responses, id .. ':run'), id .. ':e' .. at
local total = id .. ':events'
if was_deleted() or call('HEXISTS', keys.responses, id) == 0 then return 0 end
if word and not tonumber(word) then return 0 end
local before = call('HGET', keys.responses, total)
local num_bytes = tonumber(before or 0) + #data
local more = #data + #id + {FIELD_BYTES + 16}
if not before then more = more + #id + {FIELD_BYTES + 16} end
if num_bytes > max then return 0 end
if not fits(num_bytes_of(session, keys, nil, num_bytes_of_responses(keys) + more)) then
  return 0
end
local text = string.format('%d', num_bytes)
call('HSET', keys.responses, name, data, total, text)
call('HINCRBY', keys.responses, '', more + #text - #(before or ''))
enter()
if make_room() then return 1 end
remove_events(id)
account(tenant, session, keys)
return 0
"""

# Parts of a response's events. Keys: the hash. Arguments: its id; the first part's number; how many
# bytes to answer, or one part. Answers whether it is there, the word on it, what time it is,
# whether it has events, and the parts.
TAIL = """
local id, at, max = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local found = {
  redis.call('HEXISTS', KEYS[1], id), redis.call('HGET', KEYS[1], id .. ':run') or '',
  redis.call('TIME')[1], redis.call('HEXISTS', KEYS[1], id .. ':events'),
}
local num = 0
while num < max do
  local part = redis.call('HGET', KEYS[1], id .. ':e' .. at)
  if not part then break end
  found[#found + 1] = part
  num, at = num + #part, at + 1
end
return found
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
local found = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[1] .. ':items', ARGV[1] .. ':run')
found[4] = redis.call('TIME')[1]
return found
"""

# Another word on a response that is made, see `core.sessions.stored_responses`. Keys: the hash.
# Arguments: its id; the word, or nothing: that it is still made. Answers whether it was made until
# now.
SAY = """
local run, word = ARGV[1] .. ':run', ARGV[2]
if not tonumber(redis.call('HGET', KEYS[1], run)) then return 0 end
redis.call('HSET', KEYS[1], run, word ~= '' and word or redis.call('TIME')[1])
return 1
"""

# Arguments: tenant; the mark of the response's session; its id. Answers whether it was there, the
# session's name, and whether it was the last of it.
DROP = rf"""{ACCOUNTING}
local tenant, id = ARGV[1], ARGV[3]
local keys = {{responses = key_of('responses', tenant, ARGV[2])}}
local session = call('HGET', keys.responses, ':session') or ''
if call('HEXISTS', keys.responses, id) == 0 then return {{0, session, 0}} end
{PARTS}
remove_events(id)
local is_last = remove(id)
account(tenant, session, keys_of(tenant, session))
return {{1, session, is_last and 1 or 0}}
"""
