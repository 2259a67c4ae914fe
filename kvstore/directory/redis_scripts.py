"""What happens inside Redis, each piece at once: Lua, for Redis 6.2 and newer.

Keys, P = "stemkv:{deployment}:":
  P fingerprint    string  the model's; SET NX
  P secret-check   string  SHA-256 of the secret; SET NX
  P epoch          string  random name of the data's life; gone when Redis lost it
  P scopes         hash    scope -> the last flush of it, as JSON; "all" exists as long as epoch
  P flush-number   string  how many flushes were ordered
  P flushes        stream  {n: number, flush: JSON}, trimmed by age
  P acks:FLUSH     set     workers that have carried it out; expires
  P workers        zset    worker -> when its lease ends (ms, Redis's clock); expires
  P held:WORKER    set     keys of the blocks that it holds; expires with its lease
"""

_NOW = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
"""

_EXTEND_LEASE = """
local function extend_lease(workers, worker, lease_ms)
  redis.call('ZADD', workers, string.format('%d', now + lease_ms), worker)
  if redis.call('PTTL', workers) < lease_ms then redis.call('PEXPIRE', workers, lease_ms) end
end
"""

_APPEND = """
local function append(number_key, flushes, flush, retention_ms)
  local number = redis.call('INCR', number_key)
  redis.call('XADD', flushes, 'MINID', '~', string.format('%d', math.max(0, now - retention_ms)),
             '*', 'n', number, 'flush', flush)
  return number
end
"""

# KEYS: fingerprint, secret-check, epoch, scopes, flush-number, flushes, workers
# ARGV: fingerprint, secret check, worker, lease in ms, epoch that the worker knows or "",
#       name and flush of a new epoch, how long flushes are kept in ms,
#       then scope and flush of what the worker knows
# What is given back goes through the log, for who joined the new epoch before.
JOIN = (
    _NOW
    + _EXTEND_LEASE
    + _APPEND
    + """
for i = 1, 2 do
  local there = redis.call('GET', KEYS[i])
  if there and there ~= ARGV[i] then return {i == 1 and 'fingerprint' or 'secret'} end
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[2])
local epoch = redis.call('GET', KEYS[3])
if not epoch or redis.call('HEXISTS', KEYS[4], 'all') == 0 then
  epoch = ARGV[6]
  redis.call('SET', KEYS[3], epoch)
  redis.call('HSET', KEYS[4], 'all', ARGV[7])
end
if epoch ~= ARGV[5] then
  for i = 9, #ARGV, 2 do
    if redis.call('HSETNX', KEYS[4], ARGV[i], ARGV[i + 1]) == 1 then
      append(KEYS[5], KEYS[6], ARGV[i + 1], tonumber(ARGV[8]))
    end
  end
end
extend_lease(KEYS[7], ARGV[3], tonumber(ARGV[4]))
local last = redis.call('XREVRANGE', KEYS[6], '+', '-', 'COUNT', 1)
return {'ok', epoch, redis.call('GET', KEYS[5]) or '0', last[1] and last[1][1] or '0-0',
        redis.call('HGETALL', KEYS[4])}
"""
)

# KEYS: epoch, scopes. ARGV: epoch that is given up, name and flush of the new one
RENEW_EPOCH = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('HSET', KEYS[2], 'all', ARGV[3])
return 1
"""

# KEYS: workers, held:WORKER, epoch, flush-number. ARGV: worker, lease in ms
# Returns {1 if the lease had not ended, epoch, flush-number, live workers}.
HEARTBEAT = (
    _NOW
    + _EXTEND_LEASE
    + """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', now))
local alive = redis.call('ZSCORE', KEYS[1], ARGV[1])
if alive then
  extend_lease(KEYS[1], ARGV[1], tonumber(ARGV[2]))
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return {alive and 1 or 0, redis.call('GET', KEYS[3]) or '', redis.call('GET', KEYS[4]) or '0',
        redis.call('ZRANGE', KEYS[1], 0, -1)}
"""
)

# KEYS: workers, held:WORKER
# ARGV: worker, lease in ms, 1 to forget what was there, number of keys to add, keys to add,
#       keys to remove. Returns 0 if the lease has ended.
RECORD = (
    _NOW
    + """
local expiry = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not expiry or tonumber(expiry) <= now then return 0 end
if ARGV[3] == '1' then redis.call('DEL', KEYS[2]) end
local first_removed = 5 + tonumber(ARGV[4])
if first_removed > 5 then redis.call('SADD', KEYS[2], unpack(ARGV, 5, first_removed - 1)) end
if first_removed <= #ARGV then redis.call('SREM', KEYS[2], unpack(ARGV, first_removed)) end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1
"""
)

# KEYS: epoch, scopes, flush-number, flushes, acks:FLUSH
# ARGV: worker ("" to leave the acknowledgement out), flush, scope or "", how long flushes and
#       acknowledgements are kept in ms. Returns {epoch, number}, or {} if there is no epoch.
ANNOUNCE = (
    _NOW
    + _APPEND
    + """
local epoch = redis.call('GET', KEYS[1])
if not epoch then return {} end
local number = append(KEYS[3], KEYS[4], ARGV[2], tonumber(ARGV[4]))
if ARGV[3] ~= '' then redis.call('HSET', KEYS[2], ARGV[3], ARGV[2]) end
if ARGV[1] ~= '' then
  redis.call('SADD', KEYS[5], ARGV[1])
  redis.call('PEXPIRE', KEYS[5], ARGV[4])
end
return {epoch, number}
"""
)

# KEYS: workers, acks:FLUSH ... ARGV: none. Returns {live workers, who has acknowledged}.
ACKNOWLEDGEMENTS = (
    _NOW
    + """
return {redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%d', now), '+inf'),
        redis.call('SMEMBERS', KEYS[2])}
"""
)
