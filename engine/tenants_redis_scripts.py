"""What `RedisTenantStore` runs inside Redis: each script reads and writes as one.

KEYS, in order: tenants, keys, key-ids, tenants-kept, public-prefixes; see `tenants_redis`.
"""

# Returns {1 if the tenants are kept}, with the tenant's name and record behind it if there is one.
AUTHENTICATE = """
local kept = redis.call('EXISTS', KEYS[4])
local key = redis.call('HGET', KEYS[2], ARGV[1])
if not key then return {kept} end
local name = cjson.decode(key).tenant
local tenant = redis.call('HGET', KEYS[1], name)
if not tenant then return {kept} end
return {kept, name, tenant}
"""

# Returns {1 if the tenants are kept, 1 if there is one}.
EXIST = "return {redis.call('EXISTS', KEYS[4]), redis.call('EXISTS', KEYS[1])}"

# ARGV: name and record of each tenant. If the enabled tenants' reserves would be above the pool,
# and above what they were, writes nothing and returns what those that are not put reserve.
PUT_TENANTS = """
local function reserve_of(record)
  local tenant = cjson.decode(record)
  if not tenant.enabled or not tenant.quota then return 0 end
  return tenant.quota.reserve
end
local before, others, asked, put = 0, 0, 0, {}
for i = 1, #ARGV, 2 do
  put[ARGV[i]] = true
  asked = asked + reserve_of(ARGV[i + 1])
end
local rows = redis.call('HGETALL', KEYS[1])
for i = 1, #rows, 2 do
  local reserve = reserve_of(rows[i + 1])
  before = before + reserve
  if not put[rows[i]] then others = others + reserve end
end
if others + asked > 1 + 1e-9 and others + asked > before then
  return string.format('%.17g', others)
end
redis.call('SET', KEYS[4], '1')
for i = 1, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
return nil
"""

ADD_KEY = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return {'unknown'} end
local held = redis.call('HGET', KEYS[2], ARGV[2])
if held then
  local owner = cjson.decode(held).tenant
  if owner ~= ARGV[1] then return {'taken', owner} end
  return {'ok'}
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[4])
redis.call('HSET', KEYS[3], ARGV[3], ARGV[2])
return {'ok'}
"""

REMOVE_TENANT = """
local keys = redis.call('HGETALL', KEYS[2])
for i = 1, #keys, 2 do
  local key = cjson.decode(keys[i + 1])
  if key.tenant == ARGV[1] then
    redis.call('HDEL', KEYS[2], keys[i])
    redis.call('HDEL', KEYS[3], key.key_id)
  end
end
return redis.call('HDEL', KEYS[1], ARGV[1])
"""

REVOKE_KEY = """
local digest = redis.call('HGET', KEYS[3], ARGV[1])
if not digest then return 0 end
redis.call('HDEL', KEYS[2], digest)
return redis.call('HDEL', KEYS[3], ARGV[1])
"""

# Returns the record that stands under the name already, nil if there was none.
ADD_PREFIX = """
local held = redis.call('HGET', KEYS[5], ARGV[1])
if held then return held end
redis.call('SET', KEYS[4], '1')
redis.call('HSET', KEYS[5], ARGV[1], ARGV[2])
return nil
"""
