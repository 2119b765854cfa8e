-- Keys that an operator has blocked, and keys that their file has opened again since.
-- KEYS[1]: a sorted set, ids by the microsecond in which they were blocked, or opened: then with a mark before the id.
-- ARGV: seconds to keep them, then pairs: what is true now, and what is true no more.
local time = redis.call('TIME')
local now = time[1] .. string.format('%06d', tonumber(time[2]))
for place = 2, #ARGV, 2 do
  redis.call('ZADD', KEYS[1], now, ARGV[place])
  redis.call('ZREM', KEYS[1], ARGV[place + 1])
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return {}
