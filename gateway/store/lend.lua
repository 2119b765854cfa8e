-- Limits of one owner: what was handed back and owed is booked, what is asked for is set aside.
--
-- KEYS: one hash for each limit, all with the same hash tag. Its fields: u and m, what is used, in units and millionths
-- of one; t, when that was so, in microseconds; c, sixtieths of a millionth that have drained beyond it; p, the period
-- of a budget; b, when the key was made.
-- ARGV[1]: live replicas. Then for each key 17 numbers, amounts as units and millionths:
-- capacity (units), units a minute (0: a budget), period, seconds to keep it, back, owed, have, need, wanted,
-- known (what its owner knew to be used) and when it knew that (microseconds, 0: nothing is known).
-- Answers 7 numbers for each key, as text: granted, used, microseconds to wait (-1: none helps), written off; then the time.
--
-- A double holds whole numbers up to 2^53 only: amounts are pairs, and no product here is above 2^51.
local MILLION = 1000000

local function pair(units, micros)
  local carry = math.floor(micros / MILLION)
  return {units + carry, micros - carry * MILLION}
end
local function add(a, b) return pair(a[1] + b[1], a[2] + b[2]) end
local function sub(a, b) return pair(a[1] - b[1], a[2] - b[2]) end
local function less(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end
local function least(a, b) if less(b, a) then return b end return a end
local function most(a, b) if less(a, b) then return b end return a end
local ZERO = {0, 0}

local function drain(used, carry, passed, per_minute)
  if per_minute == 0 or passed <= 0 or not less(ZERO, used) then return used, carry end
  local seconds = math.floor(passed / MILLION)
  if seconds * per_minute / 60 > used[1] + 1 then return ZERO, 0 end
  local units = math.floor(seconds * per_minute / 60)
  local sixtieths = (seconds * per_minute - units * 60) * MILLION + (passed - seconds * MILLION) * per_minute + carry
  local micros = math.floor(sixtieths / 60)
  local left = sub(used, pair(units, micros))
  if not less(ZERO, left) then return ZERO, 0 end
  return left, sixtieths - micros * 60
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * MILLION + tonumber(time[2])
local replicas = tonumber(ARGV[1])
local answer = {}

local function say(number) answer[#answer + 1] = string.format('%.0f', number) end

for index, key in ipairs(KEYS) do
  local at = 1 + (index - 1) * 17
  local function number(place) return tonumber(ARGV[at + place]) end
  local function amount(place) return {number(place), number(place + 1)} end
  local capacity, per_minute, period, ttl = {number(1), 0}, number(2), number(3), number(4)
  local back, owed, have = amount(5), amount(7), amount(9)
  local need, wanted, known, known_at = amount(11), amount(13), amount(15), number(17)

  local stored = redis.call('HMGET', key, 'u', 'm', 't', 'c', 'p', 'b')
  local used, carry, born = ZERO, 0, now
  if stored[1] then
    used, carry, born = {tonumber(stored[1]), tonumber(stored[2])}, tonumber(stored[4]), tonumber(stored[6])
    used, carry = drain(used, carry, now - tonumber(stored[3]), per_minute)
  end
  local late = stored[1] and period < tonumber(stored[5])
  if stored[1] and period > tonumber(stored[5]) then
    used, carry = ZERO, 0
  end
  if known_at > 0 and (not stored[1] or known_at < born) then  -- the store has lost what it knew
    local kept, rest = drain(known, 0, now - known_at, per_minute)
    if less(used, kept) then used, carry = kept, rest end
  end

  local granted, wait, written = ZERO, -1, ZERO
  if not late then
    used = most(ZERO, sub(used, back))
    if not less(ZERO, used) then carry = 0 end
    used = add(used, owed)
    local bound = {capacity[1] * 2, 0}
    if per_minute > 0 and less(bound, used) then
      written = sub(used, bound)
      used = bound
    end
    local left = add(sub(capacity, used), have)
    local share = {math.floor(math.max(0, left[1]) / (2 * replicas)), 0}
    local block = least(least(wanted, most(need, share)), left)
    if less(block, need) then
      local over = sub(need, left)
      if per_minute > 0 then wait = math.ceil((over[1] + over[2] / MILLION) * 60 / per_minute * MILLION) end
      block = ZERO
    end
    granted = most(ZERO, sub(block, have))
    used = add(used, granted)
    local text = '%.0f'
    redis.call('HSET', key, 'u', text:format(used[1]), 'm', text:format(used[2]), 't', text:format(now),
      'c', text:format(carry), 'p', text:format(period), 'b', text:format(born))
    redis.call('EXPIRE', key, ttl)
  end
  say(granted[1]) say(granted[2]) say(used[1]) say(used[2]) say(wait) say(written[1]) say(written[2])
end
say(now)
return answer
