-- Slots of one owner, leased to replicas.
--
-- KEYS: one hash for each limit, all with the same hash tag: replica -> "count want until", until in microseconds.
-- ARGV[1]: the replica, ARGV[2]: milliseconds of a lease. Then for each key: slots in all, wanted, running.
-- Answers for each key how many it has now and 1 if others want more than they have, else 0.
--
-- Nobody is leased what others hold, nor what they want up to an equal part. What runs counts, whatever was leased.
-- Where there are fewer slots than replicas, who has one gives way to who has none.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local me, lease_ms = ARGV[1], tonumber(ARGV[2])
local answer = {}

for index, key in ipairs(KEYS) do
  local at = 2 + (index - 1) * 3
  local cap, want, used = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local stored, others, mine = redis.call('HGETALL', key), {}, 0
  for place = 1, #stored, 2 do
    local count, wanted, untl = string.match(stored[place + 1], '(%d+) (%d+) (%d+)')
    if tonumber(untl) <= now then
      redis.call('HDEL', key, stored[place])
    elseif stored[place] ~= me then
      others[#others + 1] = {tonumber(count), tonumber(wanted)}
    else
      mine = tonumber(count)
    end
  end
  local part = math.floor(cap / (#others + 1))
  if part == 0 and mine > 0 then part = 1 end
  local taken, contended = 0, 0
  for _, other in ipairs(others) do
    taken = taken + math.max(other[1], math.min(other[2], part))
    if other[2] > other[1] then contended = 1 end
  end
  local count = math.max(used, math.min(want, math.max(0, cap - taken)))
  if count == 0 and want == 0 then
    redis.call('HDEL', key, me)
  else
    redis.call('HSET', key, me, string.format('%.0f %.0f %.0f', count, want, now + lease_ms * 1000))
    redis.call('PEXPIRE', key, lease_ms)
  end
  answer[#answer + 1] = count
  answer[#answer + 1] = contended
end
return answer
