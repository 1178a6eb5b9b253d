-- Takes one call of a process: brings its cells up to date, decides its asks, answers what the cells hold.
--
-- The rules are those of src/regional/call.rs; src/regional/model.rs says the same in Rust, and a test holds the two
-- together. The shape of a call is checked before anything is written, and a call with asks is decided before. What a process
-- tells are totals, so a call that an error of the server ends halfway is simply told again.
--
-- KEYS     in the order of parts: the cells of windows; of an exact window the block of the newest sub-cell and the block
--          before; a bucket and its generation before. None twice
-- ARGV[1]  the process: its eight bytes
-- ARGV[2]  the call, packed: whole numbers with the lowest byte first, none above 2^53 - 1
--            nonce I2, charges I1 (0 or 1), number of parts I2, number of asks I2
--            for each part: measure I1 (0 sum, 1 sliding, 2 bucket, 3 exact), window_ms I5, I5: left_ms of a sliding one, limit
--                           of a bucket, place (0 to 15) of the newest sub-cell in its block, else 0; number of cells I1
--              for each cell: flags I1: 1 is_seated, 2 told, 4 rare; of an exact window also how far back it is, I1
--                told:        own, epoch, floor, acked, each I7, and ttl_ms or of a bucket the level at the process, I7
--                rare:        asked, asked_acked, refunds_floor or of a bucket floor_rest, the hits of the row or of a bucket
--                             its burst, the refunds of the row, foreign, each I7
--            for each ask: number of needs I2
--              for each need: part (from 1) I2, limit I7, hits I7, quota + 1 or 0 I3, hits to charge ahead I2
--          What is not told is 0. The first cell of a part is told. An exact window names the cells that it has news of.
--
-- Answers a string, packed likewise, because that costs Redis least:
--            for each cell of a window: I1: 0 it is not there; 1 it is as the process knows it but for others' hits, then sum I7,
--                           holders I3; 2 it is any other, then epoch, sum, field, asked, refunds, each I7, holders I3
--            for an exact window, of both blocks: its string without the records and the process's record, each after its
--                           length I2 and empty if it is not there, holders I3
--            for a bucket: epoch, sum, field, asked, each I7, holders I3, ahead_ms, whole, rest, each I7
--            for each ask: is_admitted I1 (0 or 1), number of needs that are over I2, the place of each (from 0) I2
--
-- A cell is a string, so that one MGET reads all of them, and one SETRANGE changes one: a kind I1 (1 short, 2 long), `e` I7,
-- then of each sub-cell `a`, or if it is long `f a h r k l`, each I7; then a record for each process that has told: its eight
-- bytes, then of each sub-cell `own`, or if it is long `own asked`, each I7. The cell of a window has one sub-cell, the block of
-- an exact window sixteen. A cell is short as long as `f`, `r`, `k`, `l` and `asked` are 0 and `h` is `a`. It is made when there
-- is something to keep, with its time to live; nothing that is only read is made.
--
-- A bucket is a hash: in `h` nine numbers, each I7, `e w q t v n g b m`, and a field for each process, `own asked`. A bucket drains
-- by this server's clock alone: the clocks of its callers may be apart by any time.
--
-- A bucket that is never empty lives on without end, and the processes that fill it do not. So its fields have generations.
-- When a new process finds one that is old enough, the hash is set aside under the second key of the bucket, and a new one
-- begins with the level and another epoch: `g` when it began, `b` the epoch from which on nothing was lost, `m` how many
-- fields are left in the hash that was set aside. Who has one there takes it along when it next comes.

local MAX = 9007199254740991 -- 2^53 - 1: every count saturates here.
local HALF = 131072 -- 2^17: half of the bits of a window.
local WINDOW_MAX = 34359738367 -- 2^35 - 1: what `divided` can take.
local BUCKET_LINGERS_MS = 60000
local BUCKET_RENEWED_MS = 5000 -- A bucket that has been empty for longer starts afresh.
-- A generation lasts as long as its hits take to drain, within these: nobody tells about them once more after that.
local GENERATION_MS_MIN, GENERATION_MS_MAX = 60000, 3600000
local DEBT_TIMES = 10 -- How many times its burst and its limit a bucket holds at most.
-- From 2030 on an epoch has fewer bits of the nonce: 2^53 would be reached in 2039, so it is in 2649.
local EPOCHS_COARSE_MS = 1893456000000
local SUM, SLIDING, BUCKET, EXACT = 0, 1, 2, 3
local SHORT, LONG = 1, 2
local BLOCK = 16 -- Sub-cells of a block.
-- What a cell of a call takes, by its flags.
local BARE, TOLD, ALL = 1, 36, 78
local LENGTHS = { [0] = BARE, BARE, TOLD, TOLD, nil, nil, ALL, ALL }
-- What the newest cell of a plain part takes with its part, and a plain ask.
local PLAIN_PART, PLAIN_ASK = 48, 23
-- What is answered of a cell that is not there, and to an ask about one limit.
local NOT_THERE, ADMITTED, DENIED = '\0', '\1\0\0', '\0\1\0\0\0'
-- So many records go over the line once more to save a command.
local NEAR = 256
local AT_ONCE = 4000 -- What a command takes: Lua's stack has an end.

local call, fmod, tonumber = redis.call, math.fmod, tonumber
local byte, find, format, sub, concat = string.byte, string.find, string.format, string.sub, table.concat
local pack, unpack_numbers = struct.pack, struct.unpack

local process, text = ARGV[1], ARGV[2]
local nonce, charges, parts_count, asks_count

local now_ms
-- One time for the whole call.
local function time_ms()
  if not now_ms then
    local time = call('TIME')
    now_ms = time[1] * 1000 + (time[2] - fmod(time[2], 1000)) / 1000
  end
  return now_ms
end

-- Later than the one that the process knew, even if this origin's clock is behind that of the one before.
local function new_epoch(told)
  local time = time_ms()
  local epoch
  if time < EPOCHS_COARSE_MS then
    epoch = time * 4096 + nonce
  else
    epoch = EPOCHS_COARSE_MS * 4096 + (time - EPOCHS_COARSE_MS) * 64 + fmod(nonce, 64)
  end
  if epoch <= told then
    epoch = told + 1
  end
  return epoch < MAX and epoch or MAX
end

-- 1. Most calls are plain: they tell the newest cells of windows and ask nothing, or each ask is about one limit of a part of its
-- own. They are served here with as little as that takes: what follows makes its functions anew for every call. What is written
-- comes to nothing more when it comes again, so a call that turns out not to be plain goes on below: one with asks from its
-- beginning, one without from the first part that is not.
local plain_parts, plain_keys, plain_at, plain_answer = 0, 0, 8, nil
if #ARGV == 2 and #process == 8 and #text > 7 and #KEYS > 0 and #KEYS <= AT_ONCE then
  nonce, charges, parts_count, asks_count = unpack_numbers('<I2I1I2I2', text)
  local parts, asks = parts_count, asks_count
  local held = (asks == 0 or (asks == parts and charges == 1)) and call('MGET', unpack(KEYS))
  local at, key_number, parts_end = 8, 1, #text - PLAIN_ASK * asks
  local ask_at = parts_end + 1
  local verdicts, epoch_made
  if parts > 1 then
    plain_answer, verdicts = {}, {}
  end
  for number = 1, held and parts or 0 do
    local key = KEYS[key_number]
    if not key or at + PLAIN_PART - 1 > parts_end then
      break
    end
    local measure, window, left, cells, flags, own, epoch, floor, _, ttl_ms =
      unpack_numbers('<I1I5I5I1I1I7I7I7I7I7', text, at)
    if measure > SLIDING or cells > 2 or flags ~= 3 or window < 1 or window > WINDOW_MAX or left > window then
      break
    end
    local next_at, next_key = at + PLAIN_PART, key_number + 1

    -- The newest cell, as it is and with what is told.
    local before = held[key_number]
    local e, sum, field, holders, mine = 0, 0, 0, 0, nil
    if before then
      local kind
      kind, e, sum = unpack_numbers('<I1I7I7', before)
      if kind ~= SHORT or (epoch ~= e and epoch ~= 0) then
        break
      end
      mine = find(before, process, 16, true)
      while mine and fmod(mine - 16, 15) ~= 0 do
        mine = find(before, process, mine + 1, true)
      end
      if mine then
        field = unpack_numbers('<I7', before, mine + 8)
      end
      holders = (#before - 15) / 15
    elseif epoch ~= 0 then
      break
    end
    local now = field
    if own > field then
      sum = sum + (own - field)
      now = own
    end
    if sum >= MAX or (before and epoch == e and floor > sum) then
      break
    end

    -- The cell before it, of which nothing is new.
    local said_2, sum_2 = '', 0
    if cells == 2 then
      local key_2 = KEYS[next_key]
      if not key_2 or key_2 == key or next_at > parts_end then
        break
      end
      local flags_2, own_2, epoch_2, floor_2 = byte(text, next_at), 0, 0, 0
      next_at, next_key = next_at + 1, next_key + 1
      if flags_2 == 3 and next_at + 34 <= parts_end then
        own_2, epoch_2, floor_2 = unpack_numbers('<I7I7I7', text, next_at)
        next_at = next_at + 35
      elseif flags_2 > 1 then
        break
      end
      local before_2 = held[next_key - 1]
      if before_2 then
        local kind, e_2
        kind, e_2, sum_2 = unpack_numbers('<I1I7I7', before_2)
        if kind ~= SHORT or sum_2 >= MAX or (epoch_2 ~= e_2 and epoch_2 ~= 0) then
          break
        end
        local mine_2 = find(before_2, process, 16, true)
        while mine_2 and fmod(mine_2 - 16, 15) ~= 0 do
          mine_2 = find(before_2, process, mine_2 + 1, true)
        end
        local field_2 = mine_2 and unpack_numbers('<I7', before_2, mine_2 + 8) or 0
        if own_2 > field_2 or (epoch_2 == e_2 and floor_2 > sum_2) then
          break
        end
        local holders_2 = (#before_2 - 15) / 15
        if epoch_2 == e_2 and own_2 == field_2 then
          said_2 = pack('<I1I7I3', 1, sum_2, holders_2)
        else
          said_2 = pack('<I1I7I7I7I7I7I3', 2, e_2, sum_2, field_2, 0, 0, holders_2)
        end
      elseif own_2 > 0 or epoch_2 ~= 0 then
        break
      else
        said_2 = NOT_THERE
      end
    end
    if number == parts and (next_at ~= parts_end + 1 or KEYS[next_key]) then
      break
    end

    -- What the ask comes to.
    local verdict = ''
    if asks > 0 then
      local needs, part, limit, hits, quota, ahead = unpack_numbers('<I2I2I7I7I3I2', text, ask_at)
      local counted, wanted = sum, own + hits
      if sum_2 > 0 then
        local weighed = sum_2 * (measure == SLIDING and left or window)
        counted = weighed <= MAX and sum + (weighed - fmod(weighed, window)) / window or MAX
      end
      local new = wanted > now and wanted - now or 0
      if needs ~= 1 or part ~= number or quota ~= 0 or counted + new >= MAX then
        break
      end
      ask_at = ask_at + PLAIN_ASK
      if counted + new > limit then
        verdict = DENIED
      else
        verdict = ADMITTED
        if hits > 0 then
          local most = limit - counted
          local more = wanted + ahead - now
          more = more < most and more or most
          new = more > new and more or new
          sum, now = sum + new, now + new
        end
      end
    end

    if now > field then
      if not before then
        epoch_made = epoch_made or new_epoch(0)
        e, holders = epoch_made, 1
        call('SET', key, pack('<I1I7I7c8I7', SHORT, e, sum, process, now), 'PX', ttl_ms)
      elseif mine == 16 then
        call('SETRANGE', key, '8', pack('<I7c8I7', sum, process, now))
      else
        if not mine then
          mine, holders = #before + 1, holders + 1
        end
        if mine <= NEAR then
          call('SETRANGE', key, '8', pack('<I7', sum) .. sub(before, 16, mine - 1) .. pack('<c8I7', process, now))
        else
          call('SETRANGE', key, '8', pack('<I7', sum))
          call('SETRANGE', key, mine - 1, pack('<c8I7', process, now))
        end
      end
    end

    -- What the cells hold now.
    local said
    if e == 0 then
      said = NOT_THERE
    elseif before and epoch == e and own == now then
      said = pack('<I1I7I3', 1, sum, holders)
    else
      said = pack('<I1I7I7I7I7I7I3', 2, e, sum, now, 0, 0, holders)
    end
    if parts == 1 then
      return said .. said_2 .. verdict
    end
    plain_answer[number], verdicts[number] = said .. said_2, verdict
    if number == parts then
      return concat(plain_answer) .. concat(verdicts)
    end
    plain_parts, plain_keys, plain_at = number, next_key - 1, next_at
    at, key_number = next_at, next_key
  end
end

local function malformed(what)
  return redis.error_reply('ERR tidegate: malformed call: ' .. what)
end

-- floor(x * y / d) and the remainder, for x < d < 2^35 and y < 2^35. Exact, because no product in it goes above 2^53, and
-- because fmod is exact, unlike Lua's own remainder.
local function divided(x, y, d)
  local product = x * y
  local rest = 0
  local high = 0
  if product > MAX then
    local low = fmod(y, HALF)
    product = x * ((y - low) / HALF)
    rest = fmod(product, d)
    high = (product - rest) / d * HALF
    product = rest * HALF + x * low
  end
  rest = fmod(product, d)
  return high + (product - rest) / d, rest
end

-- floor(count * left / window).
local function weighed(count, left, window)
  local low = fmod(count, window)
  return (count - low) / window * left + (divided(low, left, window))
end

-- Makes a cell.
local function make(key, made, ttl_ms)
  call('SET', key, made, 'PX', ttl_ms)
end

-- Where the record of the process begins in what is held of a cell.
local function record_at(held, head, length)
  local at = find(held, process, head + 1, true)
  while at and fmod(at - head - 1, length) ~= 0 do
    at = find(held, process, at + 1, true)
  end
  return at
end

local answer, length = {}, 0

-- What most calls tell of a cell: a process that is seated tells more hits or only reads, and nothing was ever lost, found
-- too late or given back. Answers nothing if it is not so; else the epoch that it knows, that of the cell, or 0, its hits
-- with what is told, the process's field, what it tells, and where its record begins.
local function look(held, flags, at)
  local own, epoch, floor = 0, 0, 0
  if flags > 1 then
    own, epoch, floor = unpack_numbers('<I7I7I7', text, at)
  end
  if not held then
    if epoch ~= 0 or own >= MAX then
      return nil
    end
    return 0, 0, own, 0, own
  end
  local kind, e, sum = unpack_numbers('<I1I7I7', held)
  if kind ~= SHORT or (epoch ~= e and epoch ~= 0) then
    return nil
  end
  local mine = record_at(held, 15, 15)
  local field = mine and unpack_numbers('<I7', held, mine + 8) or 0
  if own > field then
    sum = sum + (own - field)
  end
  if sum >= MAX or (epoch == e and floor > sum) then
    return nil
  end
  return epoch, e, sum, field, own, mine
end

-- Writes the hits of such a cell and the process's field, and answers its epoch.
local function put(key, held, at, e, sum, field, mine)
  if not held then
    e = new_epoch(0)
    make(key, pack('<I1I7I7', SHORT, e, sum) .. process .. pack('<I7', field), (unpack_numbers('<I7', text, at + 28)))
  else
    mine = mine or #held + 1
    if mine == 16 then
      call('SETRANGE', key, '8', pack('<I7c8I7', sum, process, field))
    elseif mine <= NEAR then
      call('SETRANGE', key, '8', pack('<I7', sum) .. sub(held, 16, mine - 1) .. pack('<c8I7', process, field))
    else
      call('SETRANGE', key, '8', pack('<I7', sum))
      call('SETRANGE', key, mine - 1, pack('<c8I7', process, field))
    end
  end
  return e
end

-- Answers what such a cell holds.
local function say(held, epoch, e, sum, own, field, mine)
  local holders = held and (#held - 15) / 15 or 0
  if not mine and field > 0 then
    holders = holders + 1
  end
  length = length + 1
  if e == 0 then
    answer[length] = NOT_THERE
  elseif held and epoch == e and own == field then
    answer[length] = pack('<I1I7I3', 1, sum, holders)
  else
    answer[length] = pack('<I1I7I7I7I7I7I3', 2, e, sum, field, 0, 0, holders)
  end
end

-- Answers what a block holds: its string without records, the process's record, and how many there are.
local function say_block_parts(head, record, holders)
  length = length + 1
  answer[length] = pack('<I2', #head) .. head .. pack('<I2', #record) .. record .. pack('<I3', holders)
end

-- Answers what a block holds, and of that the process's record.
local function say_block(held)
  local head, record, holders = '', '', 0
  if held then
    local size, span = 120, 120
    if byte(held) == LONG then
      size, span = 680, 232
    end
    local mine = record_at(held, size, span)
    head, record, holders = sub(held, 1, size), mine and sub(held, mine, mine + span - 1) or '', (#held - size) / span
  end
  say_block_parts(head, record, holders)
end

-- What most calls tell of an exact window: more hits of the newest sub-cell, in a block that is there. Writes and answers it,
-- or says that it is not so.
local function tell_block(key, held, place, at)
  if not held then
    return false
  end
  local own, epoch, floor = unpack_numbers('<I7I7I7', text, at)
  local kind, e = unpack_numbers('<I1I7', held)
  if kind ~= SHORT or (epoch ~= e and epoch ~= 0) then
    return false
  end
  local shift = 7 * place
  local sum, mine = unpack_numbers('<I7', held, shift + 2), record_at(held, 120, 120)
  local field = mine and unpack_numbers('<I7', held, mine + shift + 1) or 0
  if own > field then
    sum = sum + (own - field)
  end
  if sum >= MAX or (epoch == e and floor > sum) then
    return false
  end
  if own <= field then
    say_block(held)
    return true
  end
  local packed_sum, packed_own = pack('<I7', sum), pack('<I7', own)
  local holders, record = (#held - 120) / 120, nil
  call('SETRANGE', key, shift + 1, packed_sum)
  if mine then
    call('SETRANGE', key, mine + shift, packed_own)
    record = sub(held, mine, mine + shift) .. packed_own .. sub(held, mine + shift + 8, mine + 119)
  else
    record = process .. string.rep('\0', shift - 7) .. packed_own .. string.rep('\0', 112 - shift)
    call('SETRANGE', key, #held, record)
    holders = holders + 1
  end
  say_block_parts(sub(held, 1, shift + 1) .. packed_sum .. sub(held, shift + 9, 120), record, holders)
  return true
end

-- How all other parts are brought up to date, judged, charged, written and answered.
local open, close, effective, charge

-- Makes these, which a call that tells what most tell does not need.
local function prepare()
  if open then
    return
  end

  -- The hits of a sub-cell: the floor and what was added since, but never less than its processes have told together, or than
  -- one of them knows.
  local function hits_of(it)
    local sum = it.f + it.a
    sum = sum > it.h and sum or it.h
    sum = sum > it.k and sum or it.k
    return sum < MAX and sum or MAX
  end

  -- What was given back of a sub-cell, as far as anybody knows.
  local function refunds_of(it)
    return it.r > it.l and it.r or it.l
  end

  -- What counts of a sub-cell. A full one stays full.
  local function count(it)
    local sum = hits_of(it)
    return sum < MAX and sum - refunds_of(it) or MAX
  end

  -- A cell as it is held, if it is.
  local function cell_of(key, held, size)
    if not held then
      return { key = key, held = false, size = size, is_long = false, e = nil, holders = 0, at = nil, known = 0,
        ttl_ms = 0, is_changed = false }
    end
    local kind, e = unpack_numbers('<I1I7', held)
    local head, length = 8 + 7 * size, 8 + 7 * size
    if kind == LONG then
      head, length = 8 + 42 * size, 8 + 14 * size
    end
    return { key = key, held = held, size = size, is_long = kind == LONG, e = e, holders = (#held - head) / length,
      head = head, length = length, at = record_at(held, head, length), known = 0, ttl_ms = 0, is_changed = false }
  end

  -- A sub-cell of a cell.
  local function sub_cell(cell, place)
    local it = cell[place]
    if it then
      return it
    end
    local f, a, h, r, k, l, field, asked = 0, 0, 0, 0, 0, 0, 0, 0
    local held, at = cell.held, cell.at
    if held and cell.is_long then
      f, a, h, r, k, l = unpack_numbers('<I7I7I7I7I7I7', held, 42 * place - 33)
      if at then
        field, asked = unpack_numbers('<I7I7', held, at + 14 * place - 6)
      end
    elseif held then
      a = unpack_numbers('<I7', held, 7 * place + 2)
      h = a
      if at then
        field = unpack_numbers('<I7', held, at + 7 * place + 1)
      end
    end
    it = { cell = cell, f = f, a = a, h = h, r = r, k = k, l = l, field = field, asked = asked, running = field, top = 0,
      row = 0, row_refunds = 0, foreign = 0, refund = false, is_changed = false }
    cell[place] = it
    return it
  end

  -- Brings a sub-cell up to what it is told at `at`, but for refunds, which need all cells of the part.
  local function hear(it, flags, at)
    local cell = it.cell
    local is_seated = flags % 2 == 1
    if flags < 2 then
      return
    end
    local own, epoch, floor, acked, ttl_ms = unpack_numbers('<I7I7I7I7I7', text, at)
    local asked_told, asked_acked, refunds_floor = 0, 0, 0
    if flags >= 4 then
      asked_told, asked_acked, refunds_floor, it.row, it.row_refunds, it.foreign =
        unpack_numbers('<I7I7I7I7I7I7', text, at + 35)
    end
    cell.ttl_ms = ttl_ms
    if epoch > cell.known then
      cell.known = epoch
    end
    -- One that is made now is later than any that was known.
    local e, f, a, h, r, k, l = cell.e or MAX, it.f, it.a, it.h, it.r, it.k, it.l
    local field, asked = it.field, it.asked
    local is_changed

    local from, asked_from = field, asked
    if epoch ~= 0 and epoch ~= e then
      if epoch < e then
        -- The cell was lost, and is made anew or was.
        if floor > f then
          f = floor
          is_changed = true
        end
      elseif floor > f + a and floor > h then
        -- An older copy came back. As an addition, because a floor from before may still come in.
        a = floor - f
        is_changed = true
      end
      local sum = f + a > h and f + a or h
      if refunds_floor > sum then
        refunds_floor = sum
      end
      if refunds_floor > r then
        r = refunds_floor
        is_changed = true
      end
      if acked > from then
        from = acked
      end
      if asked_acked > asked_from then
        asked_from = asked_acked
      end
    end

    if is_seated then
      if own > from then
        a = a + (own - from)
        if a > MAX then
          a = MAX
        end
      end
      if own > field then
        h = h + (own - field) < MAX and h + (own - field) or MAX
        field = own
        is_changed = true
      end
      if asked_told > asked then
        asked = asked_told
        is_changed = true
        it.refund = asked_told > asked_from and asked_told - asked_from
      end
      it.running = own
    else
      it.top = own
      it.running = field
    end
    if epoch == e and floor > k and floor > f + a and floor > h then
      -- An older copy came back, and not everybody who told is still there to tell again. Never added, because who is there
      -- does: what is known is in what they tell, or it is a part of what is gone.
      k = floor
      local pending = asked_told > asked_acked and asked_told - asked_acked or 0
      local refunds = refunds_floor - pending < k and refunds_floor - pending or k
      l = refunds > l and refunds or l
      is_changed = true
    end
    if (r > 0 or l > 0) and (f + a >= MAX or h >= MAX or k >= MAX) then
      -- A full cell stays full: refunds of the past must not make what no longer fits look like nothing.
      r, l = 0, 0
      is_changed = true
    end
    it.f, it.a, it.h, it.r, it.k, it.l, it.field, it.asked = f, a, h, r, k, l, field, asked
    if is_changed then
      it.is_changed = true
      cell.is_changed = true
    end
  end

  -- Takes refunds from a sub-cell, then from the older ones, never more than is there.
  local function refund(all, first)
    local rest = all[first].refund
    for number = first, #all do
      local it = all[number]
      if hits_of(it) < MAX then
        local taken = hits_of(it) - it.r
        if taken > rest then
          taken = rest
        end
        if taken > 0 then
          it.r = it.r + taken
          it.is_changed = true
          it.cell.is_changed = true
          rest = rest - taken
        end
      end
      if rest == 0 then
        return
      end
    end
  end

  -- What a sub-cell holds, and what the process has told of it, as they are written.
  local function packed(it, is_long)
    if is_long then
      return pack('<I7I7I7I7I7I7', it.f, it.a, it.h, it.r, it.k, it.l), pack('<I7I7', it.field, it.asked)
    end
    return pack('<I7', it.a), pack('<I7', it.field)
  end

  -- Writes a cell as a whole: it is made, or becomes long.
  local function rewrite(cell, is_long)
    local size, held = cell.size, cell.held
    local sums, fields = {}, {}
    local has_told = cell.at
    for place = 1, size do
      local it = sub_cell(cell, place)
      sums[place], fields[place] = packed(it, is_long)
      has_told = has_told or it.field > 0 or it.asked > 0
    end
    local made = pack('<I1I7', is_long and LONG or SHORT, cell.e) .. table.concat(sums)
    if held then
      -- It grows, so nothing is left of what it was.
      local records = {}
      for at = cell.head + 1, #held, cell.length do
        if at ~= cell.at then
          local record = { sub(held, at, at + 7) }
          for place = 1, size do
            record[place + 1] = sub(held, at + 7 * place + 1, at + 7 * place + 7) .. '\0\0\0\0\0\0\0'
          end
          records[#records + 1] = table.concat(record)
        end
      end
      made = made .. table.concat(records)
    end
    if has_told then
      made = made .. process .. table.concat(fields)
      cell.holders = cell.at and cell.holders or cell.holders + 1
    end
    if held then
      call('SETRANGE', cell.key, 0, made)
    else
      make(cell.key, made, cell.ttl_ms)
    end
  end

  -- Writes what has changed of a cell.
  local function write(cell)
    if not cell.is_changed then
      return
    end
    local held, is_long = cell.held, cell.is_long
    cell.e = cell.e or new_epoch(cell.known)
    for place = 1, cell.size do
      local it = cell[place]
      if it and it.is_changed and not is_long then
        is_long = it.f > 0 or it.r > 0 or it.k > 0 or it.l > 0 or it.asked > 0 or it.h ~= it.a
      end
    end
    if not held or is_long ~= cell.is_long then
      return rewrite(cell, is_long)
    end
    local key, at = cell.key, cell.at
    local has_told, fields = false, {}
    for place = 1, cell.size do
      local it = cell[place]
      if it and it.is_changed then
        local sums, field = packed(it, is_long)
        call('SETRANGE', key, 8 + #sums * (place - 1), sums)
        if at then
          call('SETRANGE', key, at + 7 + #field * (place - 1), field)
        else
          has_told = has_told or it.field > 0 or it.asked > 0
          fields[place] = field
        end
      end
    end
    if has_told then
      for place = 1, cell.size do
        fields[place] = fields[place] or (is_long and '\0\0\0\0\0\0\0\0\0\0\0\0\0\0' or '\0\0\0\0\0\0\0')
      end
      call('SETRANGE', key, #held, process .. table.concat(fields))
      cell.holders = cell.holders + 1
    end
  end

  -- Answers what a cell of a window holds.
  local function say_cell(it)
    local cell = it.cell
    length = length + 1
    answer[length] = cell.e
      and pack('<I1I7I7I7I7I7I3', 2, cell.e, hits_of(it), it.field, it.asked, refunds_of(it), cell.holders) or NOT_THERE
  end

  -- Lowers a bucket's level by what drains in `dt` milliseconds.
  local function drain(w, q, dt, limit, window)
    local low = fmod(dt, window)
    local whole, rest = divided(low, limit, window)
    -- Above 2^53 the sum is rounded, but no level is.
    whole = whole + (dt - low) / window * limit
    if whole > w then
      return 0, 0
    end
    w, q = w - whole, q - rest
    if q < 0 then
      w, q = w - 1, q + window
    end
    if w < 0 then
      return 0, 0
    end
    return w, q
  end

  -- The level of a bucket with so much more in it. What goes above what it holds is forgiven, what is there stays.
  local function filled(cell, w, added)
    local most = cell.most > w and cell.most or w
    return w + added < most and w + added or most
  end

  -- A process has no field in a bucket that is there. It may have one in the generation before; or it is new, and the
  -- generation has lasted. Answers its field there, if any, and whether the generation is over.
  local function met(cell, now, window, is_new)
    -- Without it there is none before: what is under that name is of a bucket that is gone.
    local before = cell.born > 0 and call('HMGET', cell.before_key, process)[1]
    if before then
      cell.is_moved = true
      cell.left = cell.left > 0 and cell.left - 1 or 0
      return before, false
    end
    local lasts = window > GENERATION_MS_MIN and window or GENERATION_MS_MIN
    lasts = lasts < GENERATION_MS_MAX and lasts or GENERATION_MS_MAX
    cell.lasts = lasts
    if now - cell.began >= lasts then
      return nil, is_new
    end
    if now < cell.began then
      cell.began = now
    end
    return nil, false
  end

  -- Brings a bucket up to what it is told at `at`.
  local function hear_bucket(key, before_key, flags, at, window, limit)
    local is_seated = flags % 2 == 1
    local own, epoch, floor, acked, level = unpack_numbers('<I7I7I7I7I7', text, at)
    local asked_told, asked_acked, floor_rest, burst = 0, 0, 0, 0
    if flags >= 4 then
      asked_told, asked_acked, floor_rest, burst = unpack_numbers('<I7I7I7I7', text, at + 35)
    end
    local cell = {
      key = key, before_key = before_key, top = is_seated and 0 or own, most = DEBT_TIMES * (limit + burst), limit = limit,
      window = window, left = 0, born = 0,
    }
    local held = call('HMGET', key, 'h', process)
    local header, record = held[1], held[2]
    local now = time_ms()
    local e, w, q, t, v, field, asked = nil, 0, 0, now, 0, 0, 0
    if header then
      e, w, q, t, v, cell.holders, cell.began, cell.born, cell.left = unpack_numbers('<I7I7I7I7I7I7I7I7I7', header)
      if now - t > BUCKET_RENEWED_MS then
        local whole, rest = drain(w, q, now - t - BUCKET_RENEWED_MS, limit, window)
        -- What was told has drained everywhere: the fields of all who ever held it go, as if the bucket were lost.
        cell.is_renewed = whole == 0 and rest == 0
      end
    end
    if e and not cell.is_renewed then
      if t ~= now and not (now < t and now + window >= t) then
        -- Written even if nothing else is: a limit that changes must change only what drains from then on.
        cell.is_changed = true
        -- Behind by more than a window, the clock was wrong before: the time moves and the level stays.
        if now > t then
          w, q = drain(w, q, now - t, limit, window)
        end
        t = now
      end
    else
      e = new_epoch(e and e > epoch and e or epoch)
      w, q, t, v = 0, 0, now, 0
      cell.holders, cell.began, cell.born, cell.left = 0, now, 0, 0
      cell.is_made = true
      cell.is_changed = true
    end
    if record and not cell.is_renewed then
      field, asked = unpack_numbers('<I7I7', record)
    else
      cell.is_changed = true
      local before, is_over
      if not cell.is_made then
        before, is_over = met(cell, now, window, epoch == 0)
      end
      if before then
        field, asked = unpack_numbers('<I7I7', before)
      else
        cell.holders = cell.holders + 1
      end
      if is_over then
        cell.is_over = true
        cell.born = cell.born > 0 and cell.born or e
        e = new_epoch(e)
        v = 0
        -- Those of the generation before the one that is over are forgotten.
        cell.holders = cell.holders - cell.left
        cell.left = cell.holders - 1
        cell.began = now
      end
    end

    local from, asked_from = field, asked
    if epoch ~= 0 and epoch ~= e then
      local is_raised
      if cell.born > 0 and epoch >= cell.born and epoch < e then
        -- Only the generation is another one: the level is what it was.
        is_raised = false
      elseif epoch < e then
        -- Lost and made anew: to what was added since comes what was there before, unless it is in already.
        is_raised = floor > 0 or floor_rest > 0
        floor = floor + v < MAX and floor + v or MAX
      else
        is_raised = true
      end
      if floor >= cell.most then
        floor, floor_rest = cell.most, 0
      end
      if is_raised and (floor > w or (floor == w and floor_rest > q)) then
        w, q = floor, floor_rest
        cell.is_changed = true
      end
      if acked > from then
        from = acked
      end
      if asked_acked > asked_from then
        asked_from = asked_acked
      end
    end

    if is_seated then
      if own > from then
        local added = own - from
        -- Of what was not told, only what has not drained where it was admitted. What was given back there is not in its
        -- level any more.
        local left = level + (asked_told > asked_from and asked_told - asked_from or 0)
        left = added < left and added or left
        w = filled(cell, w, left)
        v = v + added < MAX and v + added or MAX
      end
      if own > field then
        field = own
        cell.is_changed = true
      end
      if asked_told > asked then
        if asked_told > asked_from then
          w = w - (asked_told - asked_from)
          if w < 0 then
            w, q = 0, 0
          end
        end
        asked = asked_told
        cell.is_changed = true
      end
      cell.running = own
    else
      cell.running = field
    end
    cell.e, cell.w, cell.q, cell.t, cell.v, cell.field, cell.asked = e, w, q, t, v, field, asked
    return cell
  end

  -- Writes what has changed of a bucket. One that is only read is not made.
  local function write_bucket(cell)
    local is_blank = cell.w == 0 and cell.q == 0 and cell.v == 0 and cell.field == 0 and cell.asked == 0
    if cell.is_made and not cell.is_renewed and is_blank then
      cell.e, cell.holders = 0, 0
      return
    end
    if not cell.is_changed then
      return
    end
    local empty_ms = cell.t - time_ms()
    if cell.limit == 0 then
      -- It never drains, and denies whatever its level: there is nothing to remember.
      empty_ms = empty_ms + cell.window
    elseif cell.w > 0 or cell.q > 0 then
      -- Rounded is good enough for this.
      empty_ms = empty_ms + math.ceil((cell.w * cell.window + cell.q) / cell.limit)
    end
    local ttl_ms = empty_ms + BUCKET_LINGERS_MS
    if cell.is_renewed then
      local key = cell.key
      call('PEXPIRE', key, 0)
    elseif cell.is_over then
      -- A user who may not do this keeps the fields. The counts are right, the number of holders is not.
      redis.pcall('RENAME', cell.key, cell.before_key)
      call('PEXPIRE', cell.before_key, cell.lasts)
    elseif cell.is_moved then
      call('HDEL', cell.before_key, process)
    end
    call(
      'HSET', cell.key, 'h',
      pack('<I7I7I7I7I7I7I7I7I7', cell.e, cell.w, cell.q, cell.t, cell.v, cell.holders, cell.began, cell.born, cell.left),
      process, pack('<I7I7', cell.field, cell.asked)
    )
    call('PEXPIRE', cell.key, ttl_ms < MAX and ttl_ms or MAX)
  end

  -- Answers what a bucket holds.
  local function say_bucket(cell)
    length = length + 1
    answer[length] = pack('<I7I7I7I7I3I7I7I7', cell.e, cell.v, cell.field, cell.asked, cell.holders, cell.t - time_ms(),
      cell.w, cell.q)
  end

  -- What counts of a sub-cell in all regions, with what a process without a seat has besides.
  local function in_all_regions(it)
    local sum = count(it) + it.top
    local refunds = refunds_of(it)
    local bound = it.row - (it.row_refunds > refunds and it.row_refunds or refunds)
    sum = (sum > bound and sum or bound) + it.foreign
    return sum < MAX and sum or MAX
  end

  -- What counts against a limit of a part.
  function effective(part)
    local all = part.all
    local newest = all[1]
    if part.measure == BUCKET then
      return newest.w + (newest.q > 0 and 1 or 0) + newest.top
    end
    local sum = in_all_regions(newest)
    if part.measure == SLIDING then
      local previous = all[2]
      if previous then
        sum = sum + weighed(in_all_regions(previous), part.measured, part.window)
      end
    else
      for number = 2, #all do
        sum = sum + in_all_regions(all[number])
      end
    end
    return sum < MAX and sum or MAX
  end

  -- Brings all cells of a part up to what they are told, and answers where the next part begins. With `is_judged`, also those of an exact window are there that nothing
  -- is told of.
  function open(part, held, at, key_number, is_judged)
    local all, refunds = {}, false
    part.all = all
    if part.measure == BUCKET then
      local key, before_key = KEYS[key_number], KEYS[key_number + 1]
      all[1] = hear_bucket(key, before_key, byte(text, at), at + 1, part.window, part.measured)
      return at + LENGTHS[byte(text, at)], key_number + 2
    end
    if part.measure == EXACT then
      local newest = cell_of(KEYS[key_number], held[key_number], BLOCK)
      local before = cell_of(KEYS[key_number + 1], held[key_number + 1], BLOCK)
      key_number = key_number + 2
      part.blocks = { newest, before }
      local newest_place = part.measured + 1
      local told_at = {}
      for number = 1, part.count do
        local flags, back = byte(text, at, at + 1)
        told_at[back] = at
        at = at + 1 + LENGTHS[flags]
        is_judged = is_judged or flags >= 4
      end
      for back = 0, BLOCK do
        local told_here = told_at[back]
        if told_here or is_judged then
          local place = newest_place - back
          local it
          if place > 0 then
            it = sub_cell(newest, place)
          else
            it = sub_cell(before, place + BLOCK)
          end
          if told_here then
            hear(it, byte(text, told_here), told_here + 2)
            refunds = refunds or it.refund
          end
          all[#all + 1] = it
        end
      end
    else
      for number = 1, part.count do
        local flags = byte(text, at)
        local it = sub_cell(cell_of(KEYS[key_number], held[key_number], 1), 1)
        hear(it, flags, at + 1)
        refunds = refunds or it.refund
        all[number] = it
        at = at + LENGTHS[flags]
        key_number = key_number + 1
      end
    end
    if refunds then
      for number = 1, #all do
        if all[number].refund then
          refund(all, number)
        end
      end
    end
    return at, key_number
  end

  -- Adds what was admitted.
  function charge(part, newest, new)
    if part.measure == BUCKET then
      local w = filled(newest, newest.w, new)
      if w < newest.w + new then
        part.effective = nil
      end
      newest.w = w
      newest.v = newest.v + new < MAX and newest.v + new or MAX
      return
    end
    newest.cell.is_changed = true
    newest.a = newest.a + new < MAX and newest.a + new or MAX
    newest.h = newest.h + new < MAX and newest.h + new or MAX
    if newest.row > 0 then
      -- The row is older than what is admitted now.
      newest.row = newest.row + new < MAX and newest.row + new or MAX
      part.effective = nil
    end
    if newest.k > 0 then
      -- It may be within what is known.
      part.effective = nil
    end
    if hits_of(newest) >= MAX then
      newest.r, newest.l = 0, 0
      part.effective = nil
    end
  end

  -- Writes and answers a part.
  function close(part)
    if part.measure == BUCKET then
      write_bucket(part.all[1])
      say_bucket(part.all[1])
    elseif part.measure == EXACT then
      local newest, before = part.blocks[1], part.blocks[2]
      write(newest)
      write(before)
      local kept = call('MGET', newest.key, before.key)
      say_block(kept[1])
      say_block(kept[2])
    else
      for number = 1, part.count do
        local it = part.all[number]
        write(it.cell)
        say_cell(it)
      end
    end
  end
end

-- 2. The shape, before anything relies on it.
if #ARGV ~= 2 then
  return malformed('2 arguments expected, not ' .. #ARGV)
end
if #process ~= 8 then
  return malformed('a process of 8 bytes expected, not ' .. #process)
end
local size = #text
if size < 7 then
  return malformed('it ends before its parts')
end
nonce, charges, parts_count, asks_count = unpack_numbers('<I2I1I2I2', text)
charges = charges == 1
local at, key_number = 8, 1
local is_rare -- the parts that have more to tell than most
for number = 1, parts_count do
  if at + 11 > size then
    return malformed('it ends in part ' .. number)
  end
  local measure, window, measured, cells = unpack_numbers('<I1I5I5I1', text, at)
  if measure > EXACT or window < 1 or window > WINDOW_MAX or (measure == SLIDING and measured > window)
    or (measure == EXACT and measured >= BLOCK) then
    return malformed('the measure of part ' .. number)
  end
  if cells < 1 or (measure == BUCKET and cells > 1) then
    return malformed('the cells of part ' .. number)
  end
  at = at + 12
  local last = -1
  for place = 1, cells do
    local flags = byte(text, at)
    local taken = LENGTHS[flags]
    if not taken then
      return malformed(flags and 'the cells of part ' .. number or 'it ends in part ' .. number)
    end
    if flags ~= 3 and (flags > 1 or place == 1) then
      if flags < 2 then
        return malformed('the cells of part ' .. number)
      end
      is_rare = is_rare or {}
      is_rare[number] = true
    end
    if measure == EXACT then
      local back = byte(text, at + 1)
      if not back then
        return malformed('it ends in part ' .. number)
      end
      if back > BLOCK or back <= last or (place == 1 and back > 0) then
        return malformed('the cells of part ' .. number)
      end
      last = back
      taken = taken + 1
    end
    at = at + taken
  end
  key_number = key_number + (measure < BUCKET and cells or 2)
end
if key_number - 1 ~= #KEYS then
  return malformed(format('%d keys instead of %d', #KEYS, key_number - 1))
end
local asks_at = at
for number = 1, asks_count do
  if at + 1 > size then
    return malformed('it ends in ask ' .. number)
  end
  local needs = unpack_numbers('<I2', text, at)
  at = at + 2
  if at + 21 * needs > size + 1 then
    return malformed('it ends in ask ' .. number)
  end
  for need_at = at, at + 21 * (needs - 1), 21 do
    local part = unpack_numbers('<I2', text, need_at)
    if part < 1 or part > parts_count then
      return malformed('a need of ask ' .. number)
    end
  end
  at = at + 21 * needs
end
if at - 1 ~= size then
  return malformed(format('%d bytes instead of %d', size, at - 1))
end
local seen = {}
for number = 1, #KEYS do
  local key = KEYS[number]
  if seen[key] then
    return malformed('key ' .. key .. ' comes twice')
  end
  seen[key] = true
end

-- 3. Every cell is read. What is under another name than a cell's is none, so buckets come along and do no harm.
local held = {}
if #KEYS <= AT_ONCE then
  held = #KEYS > 0 and call('MGET', unpack(KEYS)) or held
else
  for from = 1, #KEYS, AT_ONCE do
    local last = from + AT_ONCE - 1
    local some = call('MGET', unpack(KEYS, from, last < #KEYS and last or #KEYS))
    for number = 1, #some do
      held[from + number - 1] = some[number]
    end
  end
end

-- 4. Without asks each part is brought up to date, written and answered.
if asks_count == 0 then
  answer, length, at, key_number = plain_answer or answer, plain_parts, plain_at, plain_keys + 1
  for number = plain_parts + 1, parts_count do
    local measure, window, measured, count = unpack_numbers('<I1I5I5I1', text, at)
    at = at + 12
    local is_plain = not (is_rare and is_rare[number])
    if measure == EXACT and count == 1 and is_plain
      and tell_block(KEYS[key_number], held[key_number], measured + 1, at + 2) then
      say_block(held[key_number + 1])
      at = at + 1 + TOLD
      key_number = key_number + 2
    elseif measure >= BUCKET or not is_plain then
      prepare()
      local part = { measure = measure, window = window, measured = measured, count = count }
      at, key_number = open(part, held, at, key_number, false)
      close(part)
    else
      for place = key_number, key_number + count - 1 do
        local flags = byte(text, at)
        local key, before = KEYS[place], held[place]
        local epoch, e, sum, field, own, mine = look(before, flags, at + 1)
        if not epoch then
          prepare()
          local part = { measure = SUM, count = 1 }
          open(part, held, at, place, false)
          close(part)
        else
          if own > field then
            field = own
            e = put(key, before, at + 1, e, sum, field, mine)
          end
          say(before, epoch, e, sum, own, field, mine)
        end
        at = at + LENGTHS[flags]
      end
      key_number = key_number + count
    end
  end
  return concat(answer)
end

-- 5. With asks all cells are brought up to date.
local parts = {}
at, key_number = 8, 1
for number = 1, parts_count do
  local measure, window, measured, count = unpack_numbers('<I1I5I5I1', text, at)
  at = at + 12
  local part
  if measure < BUCKET and count <= 2 and not (is_rare and is_rare[number]) then
    -- Most parts have a plain cell, and one before it of which nothing is new.
    local before = held[key_number]
    local epoch, e, sum, field, own, mine = look(before, 3, at + 1)
    local counted, is_plain = sum, epoch
    local epoch_2, e_2, sum_2, field_2, own_2
    if is_plain and count == 2 then
      epoch_2, e_2, sum_2, field_2, own_2 = look(held[key_number + 1], byte(text, at + TOLD), at + TOLD + 1)
      is_plain = epoch_2 and own_2 <= field_2
      if is_plain and sum_2 > 0 then
        counted = sum + (measure == SLIDING and weighed(sum_2, measured, window) or sum_2)
      end
    end
    if is_plain then
      part = {
        measure = measure, is_plain = true, waiting = 0, effective = counted < MAX and counted or MAX, held = before,
        key_number = key_number, at = at + 1, epoch = epoch, e = e, sum = sum, own = own, mine = mine,
        field = own > field and own or field, running = own, is_changed = own > field, row = 0, k = 0, newest = nil,
        epoch_2 = epoch_2, e_2 = e_2, sum_2 = sum_2, field_2 = field_2, own_2 = own_2,
      }
      part.newest = part
      at = at + TOLD
      if count == 2 then
        at = at + LENGTHS[byte(text, at)]
      end
      key_number = key_number + count
    end
  end
  if not part then
    prepare()
    part = { measure = measure, window = window, measured = measured, count = count, waiting = 0 }
    at, key_number = open(part, held, at, key_number, true)
    part.newest = part.all[1]
  end
  parts[number] = part
end

-- 6. Then the asks are decided, one after the other.
local verdicts = {}
at = asks_at
for number = 1, asks_count do
  local first = at + 2
  local last = first + 21 * (unpack_numbers('<I2', text, at) - 1)
  at = last + 21

  local over = {}
  local denies = false
  local groups -- whether the group is over, by its number
  for need_at = first, last, 21 do
    local part_number, limit, hits, quota = unpack_numbers('<I2I7I7I3I2', text, need_at)
    local part = parts[part_number]
    local newest = part.newest
    part.effective = part.effective or effective(part)
    -- Twins of the same ask are waiting for the same verdict.
    local wanted = newest.running + part.waiting + hits
    local new = (wanted < MAX and wanted or MAX) - newest.field
    local fits = part.effective + (new > 0 and new or 0) <= limit
    if fits then
      part.waiting = part.waiting + hits
    else
      over[#over + 1] = (need_at - first) / 21
    end
    if quota == 0 then
      denies = denies or not fits
    else
      groups = groups or {}
      groups[quota] = groups[quota] or not fits
    end
  end
  if groups and not denies then
    denies = true
    for _, is_over in pairs(groups) do
      denies = denies and is_over
    end
  end

  for need_at = first, last, 21 do
    local part_number, limit, hits, quota, ahead = unpack_numbers('<I2I7I7I3I2', text, need_at)
    local part = parts[part_number]
    part.waiting = 0
    if hits > 0 and not denies and not (groups and groups[quota]) then
      local newest = part.newest
      local running = newest.running + hits
      newest.running = running < MAX and running or MAX
      local new = newest.running - newest.field
      if ahead > 0 and charges and part.measure ~= BUCKET then
        -- As many more as fit, so that the process need not ask about its next hits.
        part.effective = part.effective or effective(part)
        local most = limit - part.effective
        local more = new + ahead
        more = more < most and more or most
        new = more > new and more or new
      end
      if charges and new > 0 then
        newest.field = newest.field + new
        newest.is_changed = true
        -- Twins of the same ask may have had it forgotten.
        part.effective = part.effective and part.effective + new
        if part.is_plain then
          newest.sum = newest.sum + new
          if newest.sum >= MAX then
            newest.sum, part.effective = MAX, MAX
          end
        else
          charge(part, newest, new)
        end
      end
    end
  end
  verdicts[number] = { denies, over }
end

-- 7. What changed is written, and everything answered.
for number = 1, parts_count do
  local part = parts[number]
  if part.is_plain then
    local before, e, place = part.held, part.e, part.key_number
    if part.is_changed then
      e = put(KEYS[place], before, part.at, e, part.sum, part.field, part.mine)
    end
    say(before, part.epoch, e, part.sum, part.own, part.field, part.mine)
    if part.epoch_2 then
      before = held[place + 1]
      say(before, part.epoch_2, part.e_2, part.sum_2, part.own_2, part.field_2, part.field_2 > 0)
    end
  else
    close(part)
  end
end
for number = 1, asks_count do
  local over = verdicts[number][2]
  answer[length + 1] = pack('<I1I2', verdicts[number][1] and 0 or 1, #over)
  length = length + 1
  for place = 1, #over do
    answer[length + place] = pack('<I2', over[place])
  end
  length = length + #over
end
return concat(answer)
