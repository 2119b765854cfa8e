-- Keys that an operator has blocked.
-- KEYS[1]: a sorted set, ids by the microsecond in which they were blocked. ARGV: seconds to keep them, then ids.
local time = redis.call('TIME')
for place = 2, #ARGV do
  redis.call('ZADD', KEYS[1], time[1] .. string.format('%06d', tonumber(time[2])), ARGV[place])
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return {}
