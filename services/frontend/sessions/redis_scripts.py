"""What must happen to a session in Redis in one step, and what each tenant's sessions take there.

Every script begins with `ACCOUNTING`. It derives all keys from the tenant and the session (see
`shared.wire.sessions`), and counts every key at about what Redis needs for it, or more: `account`
is called after every change and looks at what is there. So nothing that a tenant has Redis keep
goes uncounted, and no count can drift. Beside the keys of a session a tenant has

- ``sessions``, a sorted set of its sessions by when they expire, and ``notes``, the same of those
  of which only a note of their deletion is left;
- ``session_sizes``, a hash of the bytes of each of both, behind which stands where the session's
  KV is (`shared.locations`), and of their sum under the empty name, which no session has;
- ``deletions``, counters of fixed size, see `bump`.

All tenants together have ``symphony:tenants``, a sorted set by their bytes, with the sum under the
empty name; ``symphony:tenants_due``, by when the first of their sessions expires; and
``symphony:deletions``, the tenants that have counters of their own.
"""

from services.frontend.config import TURN_S_MAX
from shared.expiry import EXPIRY_S_MAX
from shared.wire.sessions import MARK_CHARS

LEAVING_MAX = 1000  # sessions in one step: meanwhile Redis does nothing else
EPOCH_S = TURN_S_MAX + 3600  # longer than a turn lasts, so that none restores its session
TOMBSTONE_S = EXPIRY_S_MAX  # blocks stay unused for as long at most
TOMBSTONE_BYTES_MAX = 1024 * 1024  # all of it goes into one message
DELETION_SLOTS = 4096  # counters of deletions of one tenant
NOTES_PART = 16  # notes of deletions leave first above one part of so many of what a tenant has

# What Redis 6 and 7 need beside names and values, bytes, at most: measured at every size of their
# tables (tests/integration/frontend/sessions/test_redis_bytes.py).
KEY_BYTES = 176  # of a key with an expiry
FIELD_BYTES = 112  # of a hash's field
ENTRY_BYTES = 272  # of a session in the set and the hash of its tenant
LOCATION_BYTES = 256  # of where its KV is, on some hosts
NOTE_BYTES = 1024  # of a note, about
TENANT_BYTES = 1536  # of what a tenant has beside its sessions
RESERVED_BYTES = 2 * 1024 * 1024  # of a Redis that is empty

ACCOUNTING = rf"""
local KEY, FIELD, ENTRY = {KEY_BYTES}, {FIELD_BYTES}, {ENTRY_BYTES + LOCATION_BYTES}
local TENANTS, DUE, TABLES = 'symphony:tenants', 'symphony:tenants_due', 'symphony:deletions'
local call = redis.call
local now = call('TIME')
local now_s = now[1] + now[2] / 1e6

local function key_of(kind, tenant, name)
  local _, num_chars = string.gsub(tenant, '[^\128-\191]', '')
  local key = 'symphony:' .. kind .. ':' .. num_chars .. ':' .. tenant
  return name and key .. ':' .. name or key
end

local function keys_of(tenant, session)
  local mark = string.sub(redis.sha1hex(session), 1, {MARK_CHARS})
  return {{
    record = key_of('session', tenant, session),
    epoch = key_of('generation', tenant, session),
    tombstone = key_of('tombstone', tenant, session),
    responses = key_of('responses', tenant, mark),
    slot = '#' .. tonumber(string.sub(mark, 1, 8), 16) % {DELETION_SLOTS},
  }}
end

-- The memory that Redis may take; 0: it has no limit, or does not say so.
local function bytes_max_of_redis()
  local info = redis.pcall('INFO', 'memory')
  return tonumber(type(info) == 'string' and string.match(info, 'maxmemory:(%d+)') or 0)
end

-- What of it sessions may take: the rest is for all else, and for what comes and goes.
local max_of_redis = bytes_max_of_redis()
local total_max = max_of_redis > 0 and math.max(max_of_redis - {RESERVED_BYTES}, 0) * 3 / 4

local function num_bytes_of_key(key)
  local num = call('STRLEN', key)
  return (num > 0 or call('EXISTS', key) == 1) and KEY + #key + num or 0
end

local function num_bytes_of_responses(keys)
  return tonumber(call('HGET', keys.responses, '') or 0) or 0
end

-- What a session takes. `record` and `responses`: as if it had a record, responses, of so many
-- bytes.
local function num_bytes_of(session, keys, record, responses)
  local num = num_bytes_of_key(keys.epoch) + num_bytes_of_key(keys.tombstone)
  num = num + (record and KEY + #keys.record + record or num_bytes_of_key(keys.record))
  responses = responses or num_bytes_of_responses(keys)
  if responses > 0 then
    num = num + KEY + #keys.responses + 2 * FIELD + #session + responses
  end
  return num > 0 and num + ENTRY + 2 * #session or 0
end

local function num_bytes_of_tenant(tenant)
  return tonumber(call('HGET', key_of('session_sizes', tenant), '') or 0) or 0
end

local function total_bytes()
  return tonumber(call('ZSCORE', TENANTS, '') or 0)
end

-- Bring what is counted for all tenants together in step with one of them.
local function account_tenant(tenant)
  local num, due, last = num_bytes_of_tenant(tenant), nil, 0
  for _, kind in ipairs({{'sessions', 'notes'}}) do
    local key = key_of(kind, tenant)
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    if first then
      due = math.min(due or tonumber(first), tonumber(first))
      local latest = tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2])
      call('EXPIRE', key, math.max(1, math.ceil(latest - now_s)))
      last = math.max(last, latest)
    end
  end
  local before = tonumber(call('ZSCORE', TENANTS, tenant) or 0)
  if due then
    call('EXPIRE', key_of('session_sizes', tenant), math.max(1, math.ceil(last - now_s)))
    num = num + {TENANT_BYTES} + 5 * #tenant
    call('ZADD', TENANTS, num, tenant)
    call('ZADD', DUE, due, tenant)
  else
    num = 0
    call('DEL', key_of('session_sizes', tenant))
    call('ZREM', TENANTS, tenant)
    call('ZREM', DUE, tenant)
  end
  if num ~= before then call('ZINCRBY', TENANTS, num - before, '') end
  if num == 0 and call('ZCARD', TENANTS) <= 1 then call('DEL', TENANTS) end
end

-- Count what is there of a session now. `expires_at_s`: nil: as before. `location`: the rest of the
-- key under which it stands where its KV is; nil: as before.
local function account(tenant, session, keys, expires_at_s, location)
  local sizes = key_of('session_sizes', tenant)
  local sessions, notes = key_of('sessions', tenant), key_of('notes', tenant)
  -- Redis may have evicted the sets of names: then their sizes count no more.
  if call('EXISTS', sessions, notes) == 0 then call('DEL', sizes) end
  local stood = call('HGET', sizes, session) or '0 '
  local before, location_before = string.match(stood, '^(%d+) ?(.*)$')
  before, location_before = tonumber(before) or 0, location_before or ''
  local num = num_bytes_of(session, keys)
  local is_note = num > 0 and call('EXISTS', keys.record, keys.responses, keys.tombstone) == 0
  local score = call('ZSCORE', sessions, session) or call('ZSCORE', notes, session)
  call('ZREM', is_note and sessions or notes, session)
  if num > 0 then
    score = expires_at_s or score or now_s + {EPOCH_S}
    call('ZADD', is_note and notes or sessions, score, session)
    call('HSET', sizes, session, num .. ' ' .. (location or location_before))
  else
    call('ZREM', sessions, session)
    call('HDEL', sizes, session)
  end
  call('HSET', sizes, '', num_bytes_of_tenant(tenant) + num - before)
  account_tenant(tenant)
end

-- A counter of deletions without a note, which several sessions of a tenant share. A turn
-- that began before another value stood there stores nothing: its session may have been deleted.
-- Tenants without a table of their own share one, when so many have one.
local function bump(tenant, keys)
  call('ZREMRANGEBYSCORE', TABLES, '-inf', now_s)
  local table_bytes = {4 * DELETION_SLOTS + TENANT_BYTES}
  local num_max = max_of_redis > 0 and math.floor(max_of_redis / 16 / table_bytes) or 10000
  local is_own = call('ZSCORE', TABLES, tenant) or call('ZCARD', TABLES) < num_max
  local key = key_of('deletions', is_own and tenant or '')
  local before = call('BITFIELD', key, 'GET', 'u32', keys.slot)[1]
  -- A counter that restarted must not reach an earlier value.
  local value = math.max(before + 1, math.floor(now_s))
  call('BITFIELD', key, 'SET', 'u32', keys.slot, value)
  call('EXPIRE', key, {EPOCH_S})
  if is_own then
    call('ZADD', TABLES, now_s + {EPOCH_S}, tenant)
    call('EXPIRE', TABLES, {EPOCH_S})
  end
end

-- Everything of a session leaves. Of its note a counter stays: no turn that runs may bring it back.
local function evict(tenant, session)
  local keys = keys_of(tenant, session)
  local sizes = key_of('session_sizes', tenant)
  call('DEL', keys.record, keys.responses, keys.tombstone)
  if call('DEL', keys.epoch) == 1 then bump(tenant, keys) end
  local location = string.match(call('HGET', sizes, session) or '', '^%d+ (.+)$')
  if location then call('DEL', 'symphony:kv:' .. location) end
  account(tenant, session, keys)
end

-- The oldest of a tenant's leave while they have expired or `is_over`: notes first, while they take
-- more than a part of its room, and then those that are left behind sessions. `session` stays.
local num_left = {LEAVING_MAX}
local function shed(tenant, session, is_over)
  local function shed_kind(kind, may_leave)
    local key = key_of(kind, tenant)
    while num_left > 0 do
      local oldest = call('ZRANGE', key, 0, 1, 'WITHSCORES')
      local at = oldest[1] == session and 3 or 1
      if not oldest[at] then break end
      if tonumber(oldest[at + 1]) > now_s and not (is_over() and may_leave(key)) then break end
      num_left = num_left - 1
      evict(tenant, oldest[at])
    end
  end
  local function always() return true end
  shed_kind('notes', function(key)
    return call('ZCARD', key) * {NOTE_BYTES * NOTES_PART} > num_bytes_of_tenant(tenant)
  end)
  shed_kind('sessions', always)
  shed_kind('notes', always)
end
"""

# What every script that keeps something begins with. Arguments: tenant; session; where its KV is;
# the word on deletions that was read when the turn began (`SessionStore.get`); how long it is to be
# kept, seconds; how many sessions the tenant may have, and how many bytes, 0: any number; what is
# to be kept.
#
# `make_room` is called when it is there and counted, which a full Redis refuses before anything
# else was done. Above the tenant's limits its own oldest leave. Above what all may have together
# those of the tenant with most leave, until another one has most. It answers whether there is room
# now; else what was kept is to be taken back.
KEEPING = rf"""{ACCOUNTING}
local tenant, session, location, word = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local expiry_s, num_max, bytes_max = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local data = ARGV[8]
local keys = keys_of(tenant, session)

local function was_deleted()
  local epoch, own, shared = string.match(word, '^(%S*) (%d+) (%d+)$')
  local stands = call('GET', keys.epoch)
  if stands and stands ~= (epoch or word) then return true end
  for of, before in pairs({{[tenant] = own or 0, [''] = shared or 0}}) do
    local counted = call('BITFIELD', key_of('deletions', of), 'GET', 'u32', keys.slot)[1]
    if counted ~= 0 and counted ~= tonumber(before) then return true end
  end
  return false
end

local function fits(num)
  return (bytes_max == 0 or num <= bytes_max) and (not total_max or num <= total_max)
end

local function is_over_limits()
  local is_over = bytes_max > 0 and num_bytes_of_tenant(tenant) > bytes_max
  return is_over or (num_max > 0 and call('ZCARD', key_of('sessions', tenant)) > num_max)
end

-- The tenant with most, and the bytes of the one behind it.
local function largest()
  local found = call('ZREVRANGE', TENANTS, 0, 2, 'WITHSCORES')
  local names, bytes = {{}}, {{}}
  for at = 1, #found, 2 do
    if found[at] ~= '' then
      names[#names + 1], bytes[#bytes + 1] = found[at], tonumber(found[at + 1])
    end
  end
  return names[1], bytes[2] or 0
end

local function make_room()
  shed(tenant, session, is_over_limits)
  if is_over_limits() then return false end
  local due = call('ZRANGEBYSCORE', DUE, '-inf', now_s, 'LIMIT', 0, 1)[1]
  if due and due ~= tenant then
    shed(due, nil, function() return false end)
    account_tenant(due)  -- also of one whose keys have all expired
  end
  while total_max and total_bytes() > total_max do
    local name, second = largest()
    local before = num_left
    shed(name, name == tenant and session or nil, function()
      local bytes = tonumber(call('ZSCORE', TENANTS, name) or 0)
      return total_bytes() > total_max and bytes >= second
    end)
    account_tenant(name)
    if num_left == 0 or num_left == before then return name ~= tenant end
  end
  return true
end

local function enter()
  call('EXPIRE', keys.responses, expiry_s)
  account(tenant, session, keys, now_s + expiry_s, location)
end
"""

# One more argument: the record's number of turns. Nothing is stored if the session was deleted
# since, or another turn that began with the same record stored its own. The number is looked for in
# the text: the rest of a record is large.
PUT = rf"""{KEEPING}
if was_deleted() then return 0 end
local stored = call('GET', keys.record)
local num_turns = stored and string.match(stored, '"num_turns":(%d+)')
if num_turns and tonumber(num_turns) >= tonumber(ARGV[9]) then return 0 end
if fits(num_bytes_of(session, keys, #data)) then
  call('SET', keys.record, data, 'EX', expiry_s)
  enter()
  if make_room() then return 1 end
end
call('DEL', keys.record)
account(tenant, session, keys)
return 0
"""

# Arguments: tenant; session; the new epoch. Answers whether there was a record, responses or
# a tombstone, and the keys of the blocks of every deletion that is not complete, which the
# tombstone gathers. What is deleted comes first: then a full Redis takes the notes, too. Of a
# session that is not there no note is made.
FORGET = rf"""{ACCOUNTING}
local tenant, session = ARGV[1], ARGV[2]
local keys = keys_of(tenant, session)
local record, block_keys = call('GET', keys.record), call('GET', keys.tombstone)
local is_found = call('DEL', keys.record, keys.responses) > 0 or block_keys ~= false
block_keys = block_keys or ''
local ok, fields = pcall(cjson.decode, record or '')
if ok and type(fields) == 'table' and type(fields['block_keys']) == 'string' then
  block_keys = block_keys .. fields['block_keys']
end
if is_found then
  call('SET', keys.epoch, ARGV[3], 'EX', {EPOCH_S})
  call('SET', keys.tombstone, string.sub(block_keys, -{TOMBSTONE_BYTES_MAX}), 'EX', {TOMBSTONE_S})
  account(tenant, session, keys, now_s + {TOMBSTONE_S})
elseif call('EXISTS', keys.epoch) == 1 then
  call('SET', keys.epoch, ARGV[3], 'EX', {EPOCH_S})
  account(tenant, session, keys, now_s + {EPOCH_S})
else
  bump(tenant, keys)
end
return {{is_found and 1 or 0, block_keys}}
"""

# Arguments: tenant; session; the epoch of the deletion that is complete; a later deletion
# keeps the tombstone.
SETTLE = rf"""{ACCOUNTING}
local tenant, session = ARGV[1], ARGV[2]
local keys = keys_of(tenant, session)
if call('GET', keys.epoch) ~= ARGV[3] or call('DEL', keys.tombstone) == 0 then return 0 end
local is_used = call('EXISTS', keys.record, keys.responses) > 0
account(tenant, session, keys, not is_used and now_s + {EPOCH_S} or nil)
return 1
"""
