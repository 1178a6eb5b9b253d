-- Takes a process's fields out of cells and buckets, so that others divide what is left among fewer. The counts stay.
--
-- KEYS     cells and buckets, in one slot of a Cluster
-- ARGV[1]  the process
--
-- Answers how many fields there were.

local taken = 0
for number = 1, #KEYS do
  if redis.call('HDEL', KEYS[number], ARGV[1]) == 1 then
    redis.call('HINCRBY', KEYS[number], 'n', -1)
    taken = taken + 1
  end
end
return taken
