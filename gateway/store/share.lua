-- What replicas have served of tenants, in cost units: added up, and told.
-- KEYS: one hash for each class of a pool, tenant -> cost units, all with the same hash tag. Without a name: since when.
-- ARGV[1]: seconds for which a hash is kept. Then for each key: the number of tenants; then for each: its name, and what
-- this replica has served of it since it told last.
-- Answers for each key since when it counts, and for each tenant, in the same order, what all have served of it.
local time = redis.call('TIME')
local at, answer = 2, {}
for _, key in ipairs(KEYS) do
  local count = tonumber(ARGV[at])
  at = at + 1
  redis.call('HSETNX', key, '', time[1] .. time[2])
  answer[#answer + 1] = redis.call('HGET', key, '')
  for _ = 1, count do
    answer[#answer + 1] = redis.call('HINCRBY', key, ARGV[at], ARGV[at + 1])
    at = at + 2
  end
  redis.call('EXPIRE', key, ARGV[1])
end
return answer
