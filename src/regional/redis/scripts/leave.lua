-- Takes a process's records out of cells and buckets. The counts stay.
--
-- KEYS     cells, blocks of exact windows and buckets, in one slot of a Cluster
-- ARGV[1]  the process: its eight bytes
-- ARGV[2]  for each key what is kept under it: `c` a cell, `x` a block, `g` a bucket
--
-- Answers how many records there were. src/regional/redis/scripts/origin.lua says how they are kept.

local call, find, sub = redis.call, string.find, string.sub
local process, kinds = ARGV[1], ARGV[2]
if #ARGV ~= 2 or #process ~= 8 or #kinds ~= #KEYS or find(kinds, '[^cxg]') then
  return redis.error_reply('ERR tidegate: malformed leave: a process and a letter for each key expected')
end

local taken = 0
for number = 1, #KEYS do
  local key, kind = KEYS[number], sub(kinds, number, number)
  if kind == 'g' then
    if call('HDEL', key, process) == 1 then
      local header = call('HMGET', key, 'h')[1]
      local holders = struct.unpack('<I7', header, 36)
      call('HSET', key, 'h', sub(header, 1, 35) .. struct.pack('<I7', holders - 1) .. sub(header, 43))
      taken = taken + 1
    end
  else
    local held = call('MGET', key)[1]
    if held then
      local size = kind == 'x' and 16 or 1
      local head, length = 8 + 7 * size, 8 + 7 * size
      if string.byte(held) == 2 then
        head, length = 8 + 42 * size, 8 + 14 * size
      end
      local at = find(held, process, head + 1, true)
      while at and math.fmod(at - head - 1, length) ~= 0 do
        at = find(held, process, at + 1, true)
      end
      if at then
        call('SET', key, sub(held, 1, at - 1) .. sub(held, at + length), 'KEEPTTL')
        taken = taken + 1
      end
    end
  end
end
return taken
