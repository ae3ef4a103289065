"""What must happen to a conversation in Redis in one step.

It stands in the hash of its session's responses (`response_scripts`), is counted with those, and
goes with them: under ``:conversation`` when it was made and its metadata; under ``:item:`` and its
id each item; under ``:order`` their ids; and under ``:item_bytes`` how many bytes those items are.
"""

from services.frontend.sessions.redis_scripts import ACCOUNTING, FIELD_BYTES, KEEPING

_FIELDS = rf"""
local function num_bytes_of_field(name)
  if call('HEXISTS', keys.responses, name) == 0 then return 0 end
  return call('HSTRLEN', keys.responses, name) + #name + {FIELD_BYTES + 8}
end
local function set(name, value)
  local before = num_bytes_of_field(name)
  if value then
    call('HSET', keys.responses, name, value)
  else
    call('HDEL', keys.responses, name)
  end
  call('HINCRBY', keys.responses, '', num_bytes_of_field(name) - before)
end
local function stands(name, otherwise)
  return call('HGET', keys.responses, name) or otherwise
end
"""

# More arguments: what this does: 'create', 'update' or 'add' to it; how many bytes and items there
# may be; ids and items in turn. What is to be kept is its metadata, or nothing: as before. Answers
# 1 if that is done; 0: there is no such conversation, or no room; -1: it would be too long.
CHANGE = rf"""{KEEPING}{_FIELDS}
local what, item_bytes_max, items_max = ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11])
local is_there = call('HEXISTS', keys.responses, ':conversation') == 1
if was_deleted() or is_there == (what == 'create') then return 0 end
local order, num_bytes = stands(':order', ''), tonumber(stands(':item_bytes', 0))
local ids, num, more = {{}}, 0, #data + #order + {4 * (FIELD_BYTES + 64)}
for id in string.gmatch(order, '%S+') do num = num + 1 end
for at = 12, #ARGV, 2 do
  ids[#ids + 1] = ARGV[at]
  num_bytes = num_bytes + #ARGV[at + 1]
  more = more + 2 * #ARGV[at] + #ARGV[at + 1] + {FIELD_BYTES + 32}
end
if num + #ids > items_max or num_bytes > item_bytes_max then return -1 end
if not fits(num_bytes_of(session, keys, nil, num_bytes_of_responses(keys) + more)) then
  return 0
end
local before = stands(':conversation', false)
if data ~= '' then set(':conversation', data) end
call('HSET', keys.responses, ':session', session)
for at = 12, #ARGV, 2 do set(':item:' .. ARGV[at], ARGV[at + 1]) end
if #ids > 0 then
  set(':order', order .. (order ~= '' and ' ' or '') .. table.concat(ids, ' '))
  set(':item_bytes', num_bytes)
end
enter()
if make_room() then return 1 end
set(':conversation', before)
for at = 12, #ARGV, 2 do
  set(':item:' .. ARGV[at], false)
  num_bytes = num_bytes - #ARGV[at + 1]
end
if #ids > 0 then
  set(':order', order)
  set(':item_bytes', num_bytes)
end
if num_bytes_of_responses(keys) <= 0 then call('DEL', keys.responses) end
account(tenant, session, keys)
return 0
"""

# All of a conversation: its metadata, and ids and items in turn; nothing if there is none. Keys:
# the hash.
READ_CONVERSATION = """
local about = redis.call('HGET', KEYS[1], ':conversation')
if not about then return {} end
local found = {about}
for id in string.gmatch(redis.call('HGET', KEYS[1], ':order') or '', '%S+') do
  found[#found + 1] = id
  found[#found + 1] = redis.call('HGET', KEYS[1], ':item:' .. id) or ''
end
return found
"""

# Arguments: tenant; session; the item's id. Answers whether it was there.
DROP_ITEM = rf"""{ACCOUNTING}
local tenant, session, id = ARGV[1], ARGV[2], ARGV[3]
local keys = keys_of(tenant, session)
{_FIELDS}
local item = stands(':item:' .. id, false)
if not item then return 0 end
local left = {{}}
for each in string.gmatch(stands(':order', ''), '%S+') do
  if each ~= id then left[#left + 1] = each end
end
set(':item:' .. id, false)
set(':order', table.concat(left, ' '))
set(':item_bytes', tonumber(stands(':item_bytes', 0)) - #item)
account(tenant, session, keys)
return 1
"""

# Fields of the hash: items of a response, or one of a conversation. Keys: the hash. Arguments: how
# many bytes there may be; the fields' names. Answers nothing if there are more.
FIELDS = """
local found, num = {}, 0
for at = 2, #ARGV do
  num = num + redis.call('HSTRLEN', KEYS[1], ARGV[at])
  if num > tonumber(ARGV[1]) then return {} end
  found[at - 1] = redis.call('HGET', KEYS[1], ARGV[at]) or ''
end
return found
"""
