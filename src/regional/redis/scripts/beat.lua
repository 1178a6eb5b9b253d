-- Says that a process lives, or that it leaves, and answers how many do.
--
-- KEYS[1]  the processes, each scored by the time of its last heartbeat
-- KEYS[2]  the incarnation: a hash that says in `i` when the data was made that is here. It is lost with the data, and
--          another one is made then
-- ARGV[1]  the process
-- ARGV[2]  `beat` or `leave`
--
-- Answers was_known (0 or 1), the number of live processes, the origin's time in milliseconds, the incarnation, 0 if
-- there is none. Only the origin's clock counts, so the clocks of the processes need not agree. A process that was
-- silent for too long is gone and no longer known.

local GONE_AFTER_MS = 3000
local KEPT_MS = 60000
-- Longer than any process is cut off and comes back.
local INCARNATION_KEPT_MS = 604800000

local key, incarnation_key, process, what = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
if #KEYS ~= 2 or #ARGV ~= 2 or (what ~= 'beat' and what ~= 'leave') then
  return redis.error_reply("ERR tidegate: malformed heartbeat: two keys, a process and 'beat' or 'leave' expected")
end

local time = redis.call('TIME')
local time_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('(%.0f', time_ms - GONE_AFTER_MS))
local incarnation = redis.call('HMGET', incarnation_key, 'i')[1]
local was_known
if what == 'beat' then
  was_known = 1 - redis.call('ZADD', key, string.format('%.0f', time_ms), process)
  redis.call('PEXPIRE', key, KEPT_MS)
  if not incarnation then
    incarnation = string.format('%.0f', time[1] * 1000000 + time[2])
    redis.call('HSET', incarnation_key, 'i', incarnation)
  end
  redis.call('PEXPIRE', incarnation_key, INCARNATION_KEPT_MS)
else
  was_known = redis.call('ZREM', key, process)
end
return { was_known, redis.call('ZCARD', key), time_ms, tonumber(incarnation or 0) }
