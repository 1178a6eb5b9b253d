-- Serves the region's voice: who speaks with other regions, what the others mention, what the speaker hands on.
--
-- KEYS[1]  the lease: names the speaker, and ends by itself
-- KEYS[2]  the mentions, a list, the oldest first
-- KEYS[3]  the feed, a stream of entries: `s` the speaker, `b` what it says
-- ARGV[1]  the process
-- ARGV[2]  what it wants of the lease: `hold`, `give up` or `nothing`
-- ARGV[3]  for how many milliseconds it holds the lease
-- ARGV[4]  how many mentions the list may have, ARGV[5] how many are handed out at once, ARGV[6] how long it is kept
-- ARGV[7]  how many entries the feed keeps, ARGV[8] how long it is kept
-- ARGV[9]  how many of the arguments that follow are mentions. All after those are entries
--
-- Answers the speaker, '' if there is none; how many mentions found room; and the mentions, if the process holds the lease.
-- Only the speaker appends entries: whoever has lost the lease without knowing changes nothing.

local FIRST = 10

local lease, list, feed = KEYS[1], KEYS[2], KEYS[3]
local process, wish = ARGV[1], ARGV[2]
local count = tonumber(ARGV[9])
if #KEYS ~= 3 or not count or #ARGV < FIRST - 1 + count then
  return redis.error_reply('ERR tidegate: malformed call of the voice')
end

local speaker = redis.call('GET', lease) or ''
if wish == 'hold' and (speaker == '' or speaker == process) then
  redis.call('SET', lease, process, 'PX', ARGV[3])
  speaker = process
end

if speaker ~= process or wish == 'nothing' then
  local mentioned = 0
  if count > 0 then
    mentioned = math.max(0, math.min(count, tonumber(ARGV[4]) - redis.call('LLEN', list)))
    for at = FIRST, FIRST + mentioned - 1 do
      redis.call('RPUSH', list, ARGV[at])
    end
    redis.call('PEXPIRE', list, ARGV[6])
  end
  return { speaker, mentioned, {} }
end

for at = FIRST + count, #ARGV do
  redis.call('XADD', feed, 'MAXLEN', ARGV[7], '*', 's', process, 'b', ARGV[at])
end
if #ARGV >= FIRST + count then
  redis.call('PEXPIRE', feed, ARGV[8])
end
if wish == 'give up' then
  -- What was mentioned is for the next speaker.
  redis.call('DEL', lease)
  return { '', 0, {} }
end
local mentions = redis.call('LRANGE', list, 0, ARGV[5] - 1)
if #mentions > 0 then
  redis.call('LTRIM', list, #mentions, -1)
end
return { speaker, 0, mentions }
