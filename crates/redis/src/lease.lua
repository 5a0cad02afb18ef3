-- Decides asks, each on its own: what is over, what is owed, what was reported, a cost, and a new hold.
--
-- KEYS     for each ask the key of its client's state, as charges use it, and the key of the holds
-- ARGV     one for each ask: algorithm, length of its tag, how many of its bytes from the third on are
--          shared by limits with the same state, tag, terms of the limit and the cost; whether to charge the cost, how much is owed, how many reports; the name of the new hold, or
--          of what is owed, and how long it may be used; for all that is owed, oldest first, when it was
--          admitted, how much it is in all by then, and what that takes; for each report the name of its
--          hold, whether that is closed, what was spent in all, and what that takes; what the new hold
--          may be, largest first: tokens, what they take, and what has to be free for them
-- ARGV[…]  states to take over from another limit: place of the ask, the sections of state and holds that
--          were found under the new limit, and those to put in their place
--
-- Each limit has its own holds, as it has its own state. When it is new, it begins with a copy of the
-- holds of the limit that was used last.
--
-- Holds are kept as the tag of their limit, and for each its name, its tokens, how many are spent, when
-- it ends, and for a bucket what these tokens take. One that is spent to the last token holds nothing, and
-- remembers what was told under its name.
--
-- Answers with the time, and for each ask a byte that says what became of it. 1: decided; whether the cost
-- was charged, which of the new holds was granted, and the state and holds that were there before,
-- each after its length. 2: it was last used by another limit or can't be read, and what is there. 3: it
-- is no string.

local char, call, concat = string.char, redis.call, table.concat
local NAME, DECIDED, FOREIGN, NO_STRING = 12, 1, 2, 3

local function get(key)
  local raw = redis.pcall('GET', key)
  if type(raw) ~= 'table' then
    return raw or ''
  end
end

-- Holds from their bytes; nothing when they can't be read.
local function read_holds(meter, terms, raw, at)
  local holds, size = {}, NAME + 21 + meter.size
  local length = #raw - at + 1
  if length % size ~= 0 or length > MOST * size then
    return nil
  end
  for place = at, #raw, size do
    local amount, spent, ends = unpack_from('>I7I7I7', raw, place + NAME)
    local hold = {name = sub(raw, place, place + NAME - 1), amount = amount, spent = spent, ends = ends}
    hold.all, hold.all_parts, hold.used, hold.used_parts =
      meter.read(terms, raw, place + NAME + 21, amount, spent)
    holds[#holds + 1] = hold
  end
  return holds
end

-- Returns until when the holds of another limit than that of the ask count, or a little longer. What a
-- hold of a bucket takes is kept with it; `state` is the section of that limit's state, if there is one.
local function holds_end(section, state)
  local length, id = byte(section, 2, 3)
  local meter, window = meter_of(id), window_of(section)
  local holds, ends, all = read_holds(meter.leasing, {window, LARGEST}, section, length + 1) or {}, 0, 0
  for index = 1, #holds do
    ends, all = math.max(ends, holds[index].ends), all + holds[index].all + 1
  end
  if meter.leasing.size == 0 then
    return ends + 2 * window
  end
  -- Tokens that refunds gave back, or may still give back, count from the later of the two as well.
  local due, _, given = 0, 0, 0
  if state and not is_bare(state) then
    due, _, given = meter.read(state, byte(state, 2) + 1)
  end
  due, given = due or 0, given or 0
  return math.max(due, ends) + all + given + math.max(due - now, 0) + MOST + 4
end

-- Writes the keys of a client after some of it changed.
--
-- While tokens are leased and not reported, both keys live until the client is settled: until both would
-- be over if all of those tokens were spent. A lease that has ended counts on top of the state, and only
-- when the next ask arrives; if either key were gone by then, some of it would be admitted once more.
-- The rule is the later of the ends of the state and of the last lease, and then the longest time for
-- which that many tokens count. It is never too short; that it may be too long costs some memory.
-- Otherwise each key lives until its own end.
local function keep(key, holds_key, tag, meter, terms, holds, holds_changed, others, other_holds, a, b, c, d)
  local state, state_until = meter.write(terms, a, b, c, d)
  local texts, holds_until, unreported, leased = {tag}, 0, 0, false
  for index = 1, #holds do
    local hold = holds[index]
    texts[index + 1] = hold.name .. pack('>I7I7I7', hold.amount, hold.spent, hold.ends) .. meter.leasing.write(hold)
    holds_until, unreported = math.max(holds_until, hold.ends), unreported + hold.all - hold.used
    leased = leased or hold.amount > hold.spent
  end
  -- A state that is over before every lease ends says nothing, also to a lease.
  local is_over = state_until <= now
  if leased then
    local settled = math.max(state_until, holds_until) + meter.leasing.counts_for(terms, unreported, a, c)
    state_until, holds_until = settled, settled
  end
  local sections, ends = {tag .. state}, {is_over and 0 or state_until}
  add_sections(sections, ends, others)
  -- Without holds there is still a section beside those of other limits: nothing is copied again.
  local hold_sections, hold_ends = {concat(texts)}, {#holds > 0 and math.max(holds_until, now + 1) or 0}
  for index = 1, #other_holds do
    local place = find_section(sections, sub(other_holds[index], 3, byte(other_holds[index], 2)))
    local over = holds_end(other_holds[index], sections[place])
    hold_sections[index + 1], hold_ends[index + 1] = other_holds[index], over
    if place and ends[place] > now then
      ends[place] = math.max(ends[place], over)
    end
  end
  put_sections(key, sections, ends)
  if holds_changed or #holds > 0 then
    put_sections(holds_key, hold_sections, hold_ends)
  end
end

local function find(holds, name)
  for index = 1, #holds do
    if holds[index].name == name then
      return index
    end
  end
end

-- How long a node may use what is kept so long: that and its margin fit into it.
local function usable(kept)
  local beyond = math.max(kept - 10000, 0)
  return (beyond * 100 - beyond * 100 % 101) / 101
end

local migrations = {}
for place = #KEYS / 2 + 1, #ARGV, 5 do
  migrations[tonumber(ARGV[place])] = place
end

local function decide(place)
  local text, key, holds_key = ARGV[place], KEYS[2 * place - 1], KEYS[2 * place]
  local id, length, shared = byte(text, 1, 3)
  local meter = meter_of(id)
  local leasing = meter.leasing
  local tag = sub(text, 4, 3 + length)
  shared = sub(tag, 3, 2 + shared)
  local terms = {meter.terms(text, 4 + length)}
  local at = terms[#terms]

  local raw, raw_holds = get(key), get(holds_key)
  if not raw or not raw_holds then
    return char(NO_STRING)
  end
  local changed, holds_changed, migration = false, false, migrations[place]
  local function foreign()
    return pack('>I1I4', FOREIGN, #raw) .. raw .. pack('>I4', #raw_holds) .. raw_holds
  end
  -- The own section, and those of other limits. An own section that changed since it was found stays: it
  -- counts all that this limit admitted.
  local function own_section(others, found, is_own)
    local at = find_section(others, shared)
    local own = at and table.remove(others, at) or ''
    if is_own(at, others) then
      return own, others, false
    elseif migration then
      return own == ARGV[migration + found] and ARGV[migration + found + 1] or own, others, true
    end
  end
  local own, others, own_holds, other_holds
  own, others, changed = own_section(split_live(raw), 1, function(at, rest)
    return at == 1 or #rest == 0
  end)
  own_holds, other_holds, holds_changed = own_section(split(raw_holds), 3, function(at, rest)
    return at or #rest == 0
  end)
  if not own or not own_holds then
    return foreign()
  end
  local a, b, c, d, holds
  if is_bare(own) then
    a, b, c, d = meter.fresh()
  else
    a, b, c, d = meter.read(own, byte(own, 2) + 1)
  end
  if own_holds == '' then
    holds = {}
  else
    holds = read_holds(leasing, terms, own_holds, byte(own_holds, 2) + 1)
  end
  if not a or not holds then
    return foreign()
  end

  local function owe(all, instant, more, more_parts)
    if more > 0 or more_parts > 0 then
      a, b, c, d = leasing.owe(terms, all, instant, more, more_parts, a, b, c, d)
      changed = true
    end
  end

  a, b, c, d = leasing.advance(terms, a, b, c, d)
  local own_now, latest = leasing.time(terms, a)

  local live = {}
  for index = 1, #holds do
    local hold = holds[index]
    if hold.ends <= now then
      owe(false, hold.ends - 1, leasing.minus(terms, hold.all, hold.all_parts, hold.used, hold.used_parts))
      holds_changed = true
    else
      live[#live + 1] = hold
    end
  end
  holds = live

  local charges, owed, reports = unpack_from('>I1I1I2', text, at)
  local name = sub(text, at + 4, at + NAME + 3)
  local life = unpack_from('>I7', text, at + NAME + 4)
  at = at + NAME + 11

  if owed > 0 then
    local index = find(holds, name)
    local known, known_all, known_parts = 0, 0, 0
    if index then
      known, known_all, known_parts = holds[index].spent, leasing.told(holds[index])
    end
    for _ = 1, owed do
      local instant, total, all, all_parts = unpack_from('>I7I7I7I7', text, at)
      at = at + 28
      if total > known then
        owe(true, math.min(instant, own_now), leasing.minus(terms, all, all_parts, known_all, known_parts))
        known, known_all, known_parts = total, all, all_parts
      end
    end
    -- What the same node told under other names is known to be heard.
    local others = {}
    for place = 1, #holds do
      local hold = holds[place]
      local stale = hold.spent == hold.amount and sub(hold.name, 1, 8) == sub(name, 1, 8)
      if hold.name ~= name and not stale then
        others[#others + 1] = hold
      end
    end
    holds, holds_changed = others, true
    if #holds < MOST then
      holds[#holds + 1] = {
        name = name, amount = known, spent = known, ends = own_now + life,
        all = known_all, all_parts = known_parts, used = known_all, used_parts = known_parts,
      }
    end
  end

  for _ = 1, reports do
    local index = find(holds, sub(text, at, at + NAME - 1))
    local closed, spent, used, used_parts = unpack_from('>I1I7I7I7', text, at + NAME)
    at = at + NAME + 22
    if index then
      local hold = holds[index]
      if spent > hold.amount then
        spent, used, used_parts = hold.amount, hold.all, hold.all_parts
      end
      if spent > hold.spent then
        owe(false, own_now, leasing.minus(terms, used, used_parts, hold.used, hold.used_parts))
        hold.spent, hold.used, hold.used_parts, holds_changed = spent, used, used_parts, true
      end
      if closed == 1 or hold.spent == hold.amount then
        table.remove(holds, index)
        holds_changed = true
      end
    end
  end

  local held, held_parts = 0, 0
  for index = 1, #holds do
    local hold = holds[index]
    held, held_parts = leasing.capped(terms, leasing.plus(terms, held, held_parts,
      leasing.minus(terms, hold.all, hold.all_parts, hold.used, hold.used_parts)))
  end
  local function fits(more, more_parts)
    more, more_parts = leasing.plus(terms, held, held_parts, more, more_parts)
    return leasing.fits(terms, more, more_parts, a, b, c, d)
  end

  local charged = 0
  -- The cost is the last of the terms before the place where the next begins.
  local cost, cost_parts = terms[#terms - 1], 0
  if leasing.size > 0 then
    cost, cost_parts = terms[#terms - 2], cost
  end
  if charges == 1 and fits(cost, cost_parts) then
    a, b, c, d = meter.take(terms, a, b, c, d)
    charged, changed = 1, true
  end

  local granted = 0
  if latest then
    life = math.min(life, usable(latest - own_now))
  end
  if life > 0 and #holds < MOST and not find(holds, name) then
    local number = 1
    while at <= #text do
      local amount, all, all_parts, free, free_parts = unpack_from('>I7I7I7I7I7', text, at)
      if fits(free, free_parts) then
        local ends = own_now + life + (life - life % 100) / 100 + 10000
        holds[#holds + 1] = {
          name = name, amount = amount, spent = 0, ends = ends,
          all = all, all_parts = all_parts, used = 0, used_parts = 0,
        }
        granted, holds_changed = number, true
        break
      end
      at, number = at + 35, number + 1
    end
  end

  if changed or holds_changed then
    keep(key, holds_key, tag, meter, terms, holds, holds_changed, others, other_holds, a, b, c, d)
  end
  return pack('>I1I1I1I4', DECIDED, charged, granted, #own) .. own .. pack('>I4', #own_holds) .. own_holds
end

local answers = {pack('>I7', now)}
for place = 1, #KEYS / 2 do
  answers[place + 1] = decide(place)
end
return concat(answers)
