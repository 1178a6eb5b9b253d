-- Takes one call of a process: brings its cells up to date, decides its asks, answers what the cells hold.
--
-- The rules are those of src/regional/call.rs; src/regional/model.rs says the same in Rust, and a test holds the two
-- together. Everything is read and decided before anything is written, so a call that fails has changed nothing.
--
-- KEYS     the cells, in the order of parts and of their cells; after a bucket that of the generation before; none twice
-- ARGV[1]  the process: the name of its field in every cell
-- ARGV[2]  a JSON array of whole numbers, none above 2^53 - 1, because one C call reads them all:
--            nonce, charges (0 or 1), number of parts
--            for each part: measure (0 sum, 1 sliding, 2 bucket), window_ms,
--                           left_ms of a sliding one, limit of a bucket, else 0, number of cells
--              for each cell: is_seated (0 or 1), own, acked, epoch, floor, asked, asked_acked,
--                             refunds_floor or of a bucket floor_rest, ttl_ms or of a bucket the level at the process,
--                             the hits of the row or of a bucket its burst, the refunds of the row, abroad
--            number of asks
--            for each ask: number of needs
--              for each need: part (from 1), limit, hits, quota + 1 or 0
--
-- Answers a flat array of whole numbers:
--            for each cell: epoch (0: it is not there), sum, field, asked, refunds, holders, and of a bucket also ahead_ms,
--                           whole, rest
--            for each ask: is_admitted (0 or 1), number of needs that are over, the place of each (from 0)
--
-- A window's cell is a hash of `e f a h r k n` and a field for each holder, a bucket of `e w q t v n` and the same. A bucket
-- drains by this server's clock alone: the clocks of its callers may be apart by any time.
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
-- From 2030 on an epoch has fewer bits of the nonce: 2^53 would be reached in 2039, so it is in 2649. Up to then it is
-- what it always was, so that processes of all versions agree.
local EPOCHS_COARSE_MS = 1893456000000
local SUM, SLIDING, BUCKET = 0, 1, 2
-- How much of a cell has to be written.
local NOTHING, ADDED, ALL = 0, 1, 2

local call, fmod, format, tonumber = redis.call, math.fmod, string.format, tonumber

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

local now_ms
-- The same for the whole call.
local function time_ms()
  if not now_ms then
    local time = call('TIME')
    now_ms = time[1] * 1000 + (time[2] - fmod(time[2], 1000)) / 1000
  end
  return now_ms
end

-- Later than the one that the process knew, even if this origin's clock is behind that of the one before.
local function new_epoch(told, nonce)
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

-- A field is `own` or `own:asked`.
local function read_field(text)
  local own = tonumber(text)
  if own then
    return own, 0
  end
  local first, second = string.match(text, '^(%d+):(%d+)$')
  return tonumber(first), tonumber(second)
end

local function write_pair(hits, refunds)
  if refunds > 0 then
    return format('%.0f:%.0f', hits, refunds)
  end
  return format('%.0f', hits)
end

local function write_field(cell)
  return write_pair(cell.field, cell.asked)
end

-- The hits of a window's cell: the floor and what was added since, but never less than its processes have told together,
-- or than one of them knows.
local function hits_of(cell)
  local sum = cell.f + cell.a
  sum = sum > cell.h and sum or cell.h
  sum = sum > cell.k and sum or cell.k
  return sum < MAX and sum or MAX
end

-- What was given back of a window's cell, as far as anybody knows.
local function refunds_of(cell)
  return cell.r > cell.l and cell.r or cell.l
end

-- What counts of a window's cell. A full one stays full.
local function count(cell)
  local sum = hits_of(cell)
  return sum < MAX and sum - refunds_of(cell) or MAX
end

local process, text = ARGV[1], ARGV[2]
if #ARGV ~= 2 then
  return malformed('2 arguments expected, not ' .. #ARGV)
end
if not string.find(text, '^%[[%d,]+%]$') then
  return malformed('the second argument is not an array of whole numbers')
end
local is_json, n = pcall(cjson.decode, text)
if not is_json then
  return malformed('the second argument is not JSON')
end

-- The shape, before anything relies on it.
local nonce, charges, parts_count = n[1], n[2] == 1, n[3]
if not parts_count then
  return malformed('it ends before its parts')
end
local asks_at, keys_count = 4, 0
for number = 1, parts_count do
  local measure, window, measured, cells = n[asks_at], n[asks_at + 1], n[asks_at + 2], n[asks_at + 3]
  if not cells then
    return malformed('it ends in part ' .. number)
  end
  if measure > BUCKET or window < 1 or window > WINDOW_MAX or (measure == SLIDING and measured > window) then
    return malformed('the measure of part ' .. number)
  end
  if cells < 1 or (measure == BUCKET and cells > 1) then
    return malformed('the cells of part ' .. number)
  end
  asks_at = asks_at + 4 + 12 * cells
  keys_count = keys_count + (measure == BUCKET and 2 or cells)
end
if keys_count ~= #KEYS then
  return malformed(format('%d keys instead of %d', #KEYS, keys_count))
end
local asks_count = n[asks_at]
if not asks_count then
  return malformed('it ends before its asks')
end
local ends_at = asks_at + 1
for number = 1, asks_count do
  local needs = n[ends_at]
  if not needs then
    return malformed('it ends in ask ' .. number)
  end
  for need_at = ends_at + 1, ends_at + 4 * needs, 4 do
    local part = n[need_at]
    if not part or part < 1 or part > parts_count then
      return malformed('a need of ask ' .. number)
    end
  end
  ends_at = ends_at + 1 + 4 * needs
end
if #n ~= ends_at - 1 then
  return malformed(format('%d numbers instead of %d', #n, ends_at - 1))
end

-- Brings one cell of a window up to what it is told at `at`, but for refunds, which need all cells of the part. One that is
-- not there is made if it is the newest, so that it knows who holds the key, or if there is something to keep in it.
local function window_cell(key, at, is_newest)
  local is_seated, own, epoch = n[at] == 1, n[at + 1], n[at + 3]
  local cell = {
    key = key, write = NOTHING, ttl_ms = n[at + 8], top = is_seated and 0 or own,
    row = n[at + 9], row_refunds = n[at + 10], abroad = n[at + 11],
  }
  local held = call('HMGET', key, 'e', 'f', 'a', 'h', 'r', 'k', process, 'n')
  local e, f, a, h, r, field, asked = tonumber(held[1] or nil), 0, 0, 0, 0, 0, 0
  local k, l = 0, 0
  if e then
    f, a, h, r = tonumber(held[2]), tonumber(held[3]), tonumber(held[4]), tonumber(held[5])
    if held[6] then
      k, l = read_field(held[6])
    end
    cell.holders = tonumber(held[8])
  else
    e = new_epoch(epoch, nonce)
    cell.holders = 0
    cell.is_missing = true
    cell.write = is_newest and ALL or NOTHING
  end
  if held[7] then
    field, asked = read_field(held[7])
  else
    cell.holders = cell.holders + 1
    if not cell.is_missing then
      cell.write = ADDED
    end
  end

  local from, asked_from = field, asked
  if epoch ~= 0 and epoch ~= e then
    local floor, acked, asked_acked, refunds_floor = n[at + 4], n[at + 2], n[at + 6], n[at + 7]
    if epoch < e then
      -- The cell was lost and made anew.
      if floor > f then
        f = floor
        cell.write = ALL
      end
    elseif floor > f + a and floor > h then
      -- An older copy came back. As an addition, because a floor from before may still come in.
      a = floor - f
      cell.write = ALL
    end
    local sum = f + a > h and f + a or h
    if refunds_floor > sum then
      refunds_floor = sum
    end
    if refunds_floor > r then
      r = refunds_floor
      cell.write = ALL
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
      cell.write = cell.write == ALL and ALL or ADDED
    end
    local asked_told = n[at + 5]
    if asked_told > asked then
      asked = asked_told
      cell.write = cell.write == ALL and ALL or ADDED
      cell.refund = asked_told > asked_from and asked_told - asked_from or nil
    end
    cell.running = own
  else
    cell.running = field
  end
  local floor = n[at + 4]
  if epoch == e and floor > k and floor > f + a and floor > h then
    -- An older copy came back, and not everybody who told is still there to tell again. Never added, because who is there
    -- does: what is known is in what they tell, or it is a part of what is gone.
    k = floor
    local pending = n[at + 5] > n[at + 6] and n[at + 5] - n[at + 6] or 0
    local refunds = n[at + 7] - pending < k and n[at + 7] - pending or k
    l = refunds > l and refunds or l
    cell.write = ALL
  end
  if (r > 0 or l > 0) and (f + a >= MAX or h >= MAX or k >= MAX) then
    -- A full cell stays full: refunds of the past must not make what no longer fits look like nothing.
    r, l = 0, 0
    cell.write = ALL
  end
  if cell.is_missing and cell.write == ADDED then
    cell.write = ALL
  end
  cell.e, cell.f, cell.a, cell.h, cell.r, cell.field, cell.asked = e, f, a, h, r, field, asked
  cell.k, cell.l = k, l
  return cell
end

-- Takes refunds from a cell, then from the older ones, never more than is there.
local function refund(cells, first)
  local rest = cells[first].refund
  for place = first, #cells do
    local cell = cells[place]
    if hits_of(cell) < MAX then
      local taken = hits_of(cell) - cell.r
      if taken > rest then
        taken = rest
      end
      if taken > 0 then
        cell.r = cell.r + taken
        cell.write = ALL
        rest = rest - taken
      end
    end
    if rest == 0 then
      return
    end
  end
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
  local held = call('HMGET', cell.key, 'g', 'b', 'm')
  local began = tonumber(held[1] or nil)
  cell.left = tonumber(held[3] or 0)
  cell.born = tonumber(held[2] or nil)
  -- Without it there is none before: what is under that name is of a bucket that is gone.
  local before = cell.born and call('HMGET', cell.before_key, process)[1]
  if before then
    cell.is_moved = true
    cell.left = cell.left > 0 and cell.left - 1 or 0
    return before, false
  end
  local lasts = window > GENERATION_MS_MIN and window or GENERATION_MS_MIN
  lasts = lasts < GENERATION_MS_MAX and lasts or GENERATION_MS_MAX
  cell.lasts = lasts
  if began and now - began >= lasts then
    return nil, is_new
  end
  if not began or now < began then
    cell.began = now
  end
  return nil, false
end

-- The same as `window_cell` for a bucket.
local function bucket(key, before_key, at, window, limit)
  local is_seated, own, epoch = n[at] == 1, n[at + 1], n[at + 3]
  local cell = {
    key = key, before_key = before_key, write = NOTHING, top = is_seated and 0 or own,
    most = DEBT_TIMES * (limit + n[at + 9]),
  }
  local held = call('HMGET', key, 'e', 'w', 'q', 't', 'v', process, 'n')
  local now = time_ms()
  local e, w, q, t, v, field, asked = tonumber(held[1] or nil), 0, 0, now, 0, 0, 0
  if e and now - tonumber(held[4]) > BUCKET_RENEWED_MS then
    local since = now - tonumber(held[4]) - BUCKET_RENEWED_MS
    local whole, rest = drain(tonumber(held[2]), tonumber(held[3]), since, limit, window)
    if whole == 0 and rest == 0 then
      -- What was told has drained everywhere: the fields of all who ever held it go, as if the bucket were lost.
      cell.is_renewed = true
    end
  end
  if e and not cell.is_renewed then
    w, q, t, v = tonumber(held[2]), tonumber(held[3]), tonumber(held[4]), tonumber(held[5])
    cell.holders = tonumber(held[7])
    if t ~= now and not (now < t and now + window >= t) then
      -- Written even if nothing else is: a limit that changes must change only what drains from then on.
      cell.write = ALL
      -- Behind by more than a window, the clock was wrong before: the time moves and the level stays.
      if now > t then
        w, q = drain(w, q, now - t, limit, window)
      end
      t = now
    end
  else
    e = new_epoch(e and e > epoch and e or epoch, nonce)
    cell.holders = 0
    cell.began = now
    cell.is_made = true
    cell.write = ALL
  end
  if held[6] and not cell.is_renewed then
    field, asked = read_field(held[6])
  else
    cell.write = ALL
    local before, is_over
    if not cell.is_made then
      before, is_over = met(cell, now, window, epoch == 0)
    end
    if before then
      field, asked = read_field(before)
    else
      cell.holders = cell.holders + 1
    end
    if is_over then
      cell.is_over = true
      cell.born = cell.born or e
      e = new_epoch(e, nonce)
      v = 0
      -- Those of the generation before the one that is over are forgotten.
      cell.holders = cell.holders - cell.left
      cell.left = cell.holders - 1
      cell.began = now
    end
  end

  local from, asked_from = field, asked
  if epoch ~= 0 and epoch ~= e then
    local floor, acked, asked_acked, rest = n[at + 4], n[at + 2], n[at + 6], n[at + 7]
    local is_raised
    local born = cell.born
    if epoch < e and not cell.is_made and not born then
      born = tonumber(call('HMGET', key, 'b')[1] or nil)
    end
    if born and epoch >= born and epoch < e then
      -- Only the generation is another one: the level is what it was.
      is_raised = false
    elseif epoch < e then
      -- Lost and made anew: to what was added since comes what was there before, unless it is in already.
      is_raised = floor > 0 or rest > 0
      floor = floor + v < MAX and floor + v or MAX
    else
      is_raised = true
    end
    if floor >= cell.most then
      floor, rest = cell.most, 0
    end
    if is_raised and (floor > w or (floor == w and rest > q)) then
      w, q = floor, rest
      cell.write = ALL
    end
    if acked > from then
      from = acked
    end
    if asked_acked > asked_from then
      asked_from = asked_acked
    end
  end

  if is_seated then
    local asked_told = n[at + 5]
    if own > from then
      local added = own - from
      -- Of what was not told, only what has not drained where it was admitted. What was given back there is not in its
      -- level any more.
      local left = n[at + 8] + (asked_told > asked_from and asked_told - asked_from or 0)
      left = added < left and added or left
      w = filled(cell, w, left)
      v = v + added < MAX and v + added or MAX
    end
    if own > field then
      field = own
      cell.write = ALL
    end
    if asked_told > asked then
      if asked_told > asked_from then
        w = w - (asked_told - asked_from)
        if w < 0 then
          w, q = 0, 0
        end
      end
      asked = asked_told
      cell.write = ALL
    end
    cell.running = own
  else
    cell.running = field
  end
  cell.e, cell.w, cell.q, cell.t, cell.v, cell.field, cell.asked = e, w, q, t, v, field, asked
  return cell
end

-- What counts of a cell in all regions, with what a process without a seat has besides.
local function in_all_regions(cell)
  local sum = count(cell) + cell.top
  local refunds = refunds_of(cell)
  local bound = cell.row - (cell.row_refunds > refunds and cell.row_refunds or refunds)
  sum = (sum > bound and sum or bound) + cell.abroad
  return sum < MAX and sum or MAX
end

-- What counts against a limit of a part.
local function effective(part)
  local cells = part.cells
  local newest = cells[1]
  if part.measure == BUCKET then
    return newest.w + (newest.q > 0 and 1 or 0) + newest.top
  end
  local sum = in_all_regions(newest)
  if part.measure == SLIDING then
    local previous = cells[2]
    if previous then
      sum = sum + weighed(in_all_regions(previous), part.measured, part.window)
    end
  else
    for place = 2, #cells do
      sum = sum + in_all_regions(cells[place])
    end
  end
  return sum < MAX and sum or MAX
end

-- 1. Every cell is brought up to what it is told.
local parts = {}
local seen = {}
local at, key_number = 4, 0
for number = 1, parts_count do
  local measure, window, measured, cells_of_part = n[at], n[at + 1], n[at + 2], n[at + 3]
  at = at + 4
  local cells = {}
  local refunds = false
  for place = 1, cells_of_part do
    key_number = key_number + 1
    local key = KEYS[key_number]
    if seen[key] then
      return malformed('key ' .. key .. ' comes twice')
    end
    seen[key] = true
    local cell
    if measure == BUCKET then
      key_number = key_number + 1
      local before_key = KEYS[key_number]
      if seen[before_key] then
        return malformed('key ' .. before_key .. ' comes twice')
      end
      seen[before_key] = true
      cell = bucket(key, before_key, at, window, measured)
    else
      cell = window_cell(key, at, place == 1)
      refunds = refunds or cell.refund
    end
    cells[place] = cell
    at = at + 12
  end
  if refunds then
    for place = 1, cells_of_part do
      if cells[place].refund then
        refund(cells, place)
      end
    end
  end
  parts[number] = { measure = measure, window = window, measured = measured, cells = cells, waiting = 0 }
end

-- 2. The asks are decided, one after the other.
local verdicts = {}
at = asks_at + 1
for number = 1, asks_count do
  local first = at + 1
  local last = at + 4 * n[at]
  at = last + 1

  local over = {}
  local denies = false
  local groups -- whether the group is over, by its number
  for need_at = first, last, 4 do
    local part, limit, hits, quota = parts[n[need_at]], n[need_at + 1], n[need_at + 2], n[need_at + 3]
    local newest = part.cells[1]
    part.effective = part.effective or effective(part)
    -- Twins of the same ask are waiting for the same verdict.
    local wanted = newest.running + part.waiting + hits
    local new = (wanted < MAX and wanted or MAX) - newest.field
    local fits = part.effective + (new > 0 and new or 0) <= limit
    if fits then
      part.waiting = part.waiting + hits
    else
      over[#over + 1] = (need_at - first) / 4
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

  for need_at = first, last, 4 do
    local part, hits, quota = parts[n[need_at]], n[need_at + 2], n[need_at + 3]
    part.waiting = 0
    if hits > 0 and not denies and not (groups and groups[quota]) then
      local newest = part.cells[1]
      local running = newest.running + hits
      newest.running = running < MAX and running or MAX
      local new = newest.running - newest.field
      if charges and new > 0 then
        newest.field = newest.running
        -- Twins of the same ask may have had it forgotten.
        part.effective = part.effective and part.effective + new
        if part.measure == BUCKET then
          local w = filled(newest, newest.w, new)
          if w < newest.w + new then
            part.effective = nil
          end
          newest.w = w
          newest.v = newest.v + new < MAX and newest.v + new or MAX
          newest.write = ALL
        else
          newest.a = newest.a + new < MAX and newest.a + new or MAX
          newest.h = newest.h + new < MAX and newest.h + new or MAX
          newest.write = newest.write == ALL and ALL or ADDED
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
            newest.write = ALL
            part.effective = nil
          end
        end
      end
    end
  end
  verdicts[number] = { denies, over }
end

-- 3. What changed is written, and everything answered.
local answer = {}
local length = 0
for number = 1, parts_count do
  local part = parts[number]
  local cells = part.cells
  if part.measure == BUCKET then
    local cell = cells[1]
    if cell.write ~= NOTHING then
      local empty_ms = cell.t - time_ms()
      if part.measured == 0 then
        -- It never drains, and denies whatever its level: there is nothing to remember.
        empty_ms = empty_ms + part.window
      elseif cell.w > 0 or cell.q > 0 then
        -- Rounded is good enough for this.
        empty_ms = empty_ms + math.ceil((cell.w * part.window + cell.q) / part.measured)
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
        'HSET', cell.key, 'e', format('%.0f', cell.e), 'w', format('%.0f', cell.w), 'q', format('%.0f', cell.q),
        't', format('%.0f', cell.t), 'v', format('%.0f', cell.v), process, write_field(cell), 'n', cell.holders
      )
      if cell.began then
        call('HSET', cell.key, 'g', format('%.0f', cell.began))
      end
      if cell.is_over then
        call('HSET', cell.key, 'b', format('%.0f', cell.born), 'm', cell.left)
      elseif cell.is_moved then
        call('HSET', cell.key, 'm', cell.left)
      end
      call('PEXPIRE', cell.key, format('%.0f', ttl_ms < MAX and ttl_ms or MAX))
    end
    answer[length + 1] = cell.e
    answer[length + 2] = cell.v
    answer[length + 3] = cell.field
    answer[length + 4] = cell.asked
    answer[length + 5] = 0
    answer[length + 6] = cell.holders
    answer[length + 7] = cell.t - time_ms()
    answer[length + 8] = cell.w
    answer[length + 9] = cell.q
    length = length + 9
  else
    for place = 1, #cells do
      local cell = cells[place]
      if cell.write ~= NOTHING then
        if cell.write == ADDED then
          -- Its time to live was set when it was made, and its window ends when it ends.
          call(
            'HSET', cell.key, 'a', format('%.0f', cell.a), 'h', format('%.0f', cell.h), process, write_field(cell),
            'n', cell.holders
          )
        else
          call(
            'HSET', cell.key, 'e', format('%.0f', cell.e), 'f', format('%.0f', cell.f), 'a', format('%.0f', cell.a),
            'h', format('%.0f', cell.h), 'r', format('%.0f', cell.r), 'k', write_pair(cell.k, cell.l),
            process, write_field(cell), 'n', cell.holders
          )
          call('PEXPIRE', cell.key, format('%.0f', cell.ttl_ms))
        end
      end
      local is_there = not cell.is_missing or cell.write ~= NOTHING
      answer[length + 1] = is_there and cell.e or 0
      answer[length + 2] = hits_of(cell)
      answer[length + 3] = cell.field
      answer[length + 4] = cell.asked
      answer[length + 5] = refunds_of(cell)
      answer[length + 6] = is_there and cell.holders or 0
      length = length + 6
    end
  end
end
for number = 1, asks_count do
  local over = verdicts[number][2]
  answer[length + 1] = verdicts[number][1] and 0 or 1
  answer[length + 2] = #over
  length = length + 2
  for place = 1, #over do
    answer[length + place] = over[place]
  end
  length = length + #over
end
return answer
