-- A replica says that it lives, or (ARGV[3] 0) that it leaves.
-- KEYS[1]: a sorted set, replicas by the microsecond until which they count as alive; KEYS[2]: that of block.lua.
-- ARGV: name, milliseconds, 1 or 0, the microsecond from which on blocked keys are asked for, seconds they are kept.
-- Answers the number of live replicas, the time in microseconds, and the ids of those keys.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
if ARGV[3] == '1' then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2]) * 1000), ARGV[1])
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now - tonumber(ARGV[5]) * 1000000))
local answer = redis.call('ZRANGEBYSCORE', KEYS[2], ARGV[4], '+inf')
table.insert(answer, 1, string.format('%.0f', now))
table.insert(answer, 1, redis.call('ZCARD', KEYS[1]))
return answer
