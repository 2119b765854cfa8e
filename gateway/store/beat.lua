-- A replica says that it lives, or (ARGV[3] 0) that it leaves.
-- KEYS[1]: a sorted set, replicas by the microsecond until which they count as alive. ARGV: name, milliseconds, 1 or 0.
-- Answers the number of live replicas and the time in microseconds.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
if ARGV[3] == '1' then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2]) * 1000), ARGV[1])
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {redis.call('ZCARD', KEYS[1]), string.format('%.0f', now)}
