-- Applies lease requests, each on its own, in this order: expired leases, unreported usage, reports of leases, a
-- cost, and a new lease.
--
-- The weight of tokens is their refill time (micros, parts) for a bucket, and their number for a window.
--
-- KEYS     for each request the key of the client's state, the same as for charges, and the key of its leases
-- ARGV     one for each request:
--          - algorithm, length of the tag, number of its bytes from the third on that are shared by limits with
--            the same state, tag, terms of the limit and the cost
--          - 1 to charge the cost, number of unreported usages, number of reports
--          - the id of the new lease or of the unreported usage, and its time to live
--          - for each unreported usage, oldest first: time of the admission, running total, its weight
--          - for each report: id of the lease, 1 if it is closed, tokens spent in all, their weight
--          - sizes of the new lease, largest first: tokens, their weight, the weight that has to be free
-- ARGV[…]  states to migrate from another limit: index of the request, then for the state and for the leases the
--          section that was found under the new limit and the section that replaces it
--
-- Each limit has its own leases, as it has its own state. A new limit begins with a copy of the leases of the
-- limit that was used last.
--
-- The leases of a limit are stored as its tag, and for each lease its id, tokens, spent tokens and end, and for a
-- bucket the weights of both. A lease without unspent tokens reserves nothing: it records the usage that was
-- reported under its id.
--
-- Returns the time, and for each request a byte. 1: applied; then whether the cost was charged, the number of the
-- granted size (0 for none), and the state and leases from before, each after its length. 2: the key was last used
-- by another limit or is not valid; then the values. 3: the key is no string.

local char, call, concat = string.char, redis.call, table.concat
local ID_BYTES, DECIDED, FOREIGN, NO_STRING = 12, 1, 2, 3

local function get(key)
  local raw = redis.pcall('GET', key)
  if type(raw) ~= 'table' then
    return raw or ''
  end
end

-- Returns the leases in a section; nil if it is not valid.
local function read_leases(meter, terms, raw, at)
  local leases, size = {}, ID_BYTES + 21 + meter.size
  local length = #raw - at + 1
  if length % size ~= 0 or length > MAX_LEASES * size then
    return nil
  end
  for offset = at, #raw, size do
    local amount, spent, ends = unpack_from('>I7I7I7', raw, offset + ID_BYTES)
    local lease = {id = sub(raw, offset, offset + ID_BYTES - 1), amount = amount, spent = spent, ends = ends}
    lease.weight, lease.weight_parts, lease.used, lease.used_parts =
      meter.read(terms, raw, offset + ID_BYTES + 21, amount, spent)
    leases[#leases + 1] = lease
  end
  return leases
end

-- Returns the time until which the leases of another limit count, or a little later. `state` is the section of
-- that limit's state, if there is one.
local function leases_end(section, state)
  local length, algorithm = byte(section, 2, 3)
  local meter, window = meter_of(algorithm), window_of(section)
  local leases, ends, weight = read_leases(meter.leasing, {window, MAX_AMOUNT}, section, length + 1) or {}, 0, 0
  for index = 1, #leases do
    ends, weight = math.max(ends, leases[index].ends), weight + leases[index].weight + 1
  end
  if meter.leasing.size == 0 then
    return ends + 2 * window
  end
  -- Adds the tokens that were refunded or may be refunded.
  local due, _, given = 0, 0, 0
  if state and not has_no_state(state) then
    due, _, given = meter.read(state, byte(state, 2) + 1)
  end
  due, given = due or 0, given or 0
  return math.max(due, ends) + weight + given + math.max(due - now, 0) + MAX_LEASES + 4
end

-- Writes the two keys of a client after a change.
--
-- While tokens are leased and not reported, both keys expire at the same time: when both would have expired if all
-- of those tokens were spent. The reason: an ended lease is added to the state by the next request. If one of the
-- keys had expired by then, its tokens would be admitted twice.
-- That time is the later end of the state and of the last lease, plus the longest time for which that many tokens
-- count. It is never too early; if it is too late, it costs some memory.
-- Without leased tokens each key has its own expiry.
local function write_client(key, leases_key, tag, meter, terms, leases, leases_changed, others, other_leases, a, b, c, d)
  local state, state_until = meter.write(terms, a, b, c, d)
  local texts, leases_until, unreported, leased = {tag}, 0, 0, false
  for index = 1, #leases do
    local lease = leases[index]
    texts[index + 1] = lease.id .. pack('>I7I7I7', lease.amount, lease.spent, lease.ends) .. meter.leasing.write(lease)
    leases_until, unreported = math.max(leases_until, lease.ends), unreported + lease.weight - lease.used
    leased = leased or lease.amount > lease.spent
  end
  -- A state that has expired now is not written, even if leases remain.
  local is_over = state_until <= now
  if leased then
    local settled = math.max(state_until, leases_until) + meter.leasing.counts_for(terms, unreported, a, c)
    state_until, leases_until = settled, settled
  end
  local sections, ends = {tag .. state}, {is_over and 0 or state_until}
  add_sections(sections, ends, others)
  -- An empty section is written beside those of other limits: it prevents another copy of their leases.
  local lease_sections, lease_ends = {concat(texts)}, {#leases > 0 and math.max(leases_until, now + 1) or 0}
  for index = 1, #other_leases do
    local section_index = find_section(sections, sub(other_leases[index], 3, byte(other_leases[index], 2)))
    local expires_at = leases_end(other_leases[index], sections[section_index])
    lease_sections[index + 1], lease_ends[index + 1] = other_leases[index], expires_at
    if section_index and ends[section_index] > now then
      ends[section_index] = math.max(ends[section_index], expires_at)
    end
  end
  put_sections(key, sections, ends)
  if leases_changed or #leases > 0 then
    put_sections(leases_key, lease_sections, lease_ends)
  end
end

local function find(leases, id)
  for index = 1, #leases do
    if leases[index].id == id then
      return index
    end
  end
end

-- Returns the time for which a node may use a lease that is stored for `kept`: that time and its clock margin
-- together fit into it.
local function usable_ttl(kept)
  local beyond = math.max(kept - 10000, 0)
  return (beyond * 100 - beyond * 100 % 101) / 101
end

local migrations = {}
for at = #KEYS / 2 + 1, #ARGV, 5 do
  migrations[tonumber(ARGV[at])] = at
end

local function apply_request(request_index)
  local text, key, leases_key = ARGV[request_index], KEYS[2 * request_index - 1], KEYS[2 * request_index]
  local algorithm, length, shared = byte(text, 1, 3)
  local meter = meter_of(algorithm)
  local leasing = meter.leasing
  local tag = sub(text, 4, 3 + length)
  shared = sub(tag, 3, 2 + shared)
  local terms = {meter.terms(text, 4 + length)}
  local at = terms[#terms]

  local raw, raw_leases = get(key), get(leases_key)
  if not raw or not raw_leases then
    return char(NO_STRING)
  end
  local changed, leases_changed, migration = false, false, migrations[request_index]
  local function reply_foreign()
    return pack('>I1I4', FOREIGN, #raw) .. raw .. pack('>I4', #raw_leases) .. raw_leases
  end
  -- Returns the section of this limit, those of other limits, and whether it was migrated. A section that has
  -- changed since it was found stays: it counts everything that this limit admitted.
  local function own_section(others, found, is_own)
    local at = find_section(others, shared)
    local own = at and table.remove(others, at) or ''
    if is_own(at, others) then
      return own, others, false
    elseif migration then
      return own == ARGV[migration + found] and ARGV[migration + found + 1] or own, others, true
    end
  end
  local own, others, own_leases, other_leases
  own, others, changed = own_section(split_live(raw), 1, function(at, rest)
    return at == 1 or #rest == 0
  end)
  own_leases, other_leases, leases_changed = own_section(split(raw_leases), 3, function(at, rest)
    return at or #rest == 0
  end)
  if not own or not own_leases then
    return reply_foreign()
  end
  local a, b, c, d, leases
  if has_no_state(own) then
    a, b, c, d = meter.fresh()
  else
    a, b, c, d = meter.read(own, byte(own, 2) + 1)
  end
  if own_leases == '' then
    leases = {}
  else
    leases = read_leases(leasing, terms, own_leases, byte(own_leases, 2) + 1)
  end
  if not a or not leases then
    return reply_foreign()
  end

  local function force_spend(unbounded, instant, more, more_parts)
    if more > 0 or more_parts > 0 then
      a, b, c, d = leasing.force_spend(terms, unbounded, instant, more, more_parts, a, b, c, d)
      changed = true
    end
  end

  a, b, c, d = leasing.advance(terms, a, b, c, d)
  local own_now, max_end = leasing.time(terms, a)

  local live = {}
  for index = 1, #leases do
    local lease = leases[index]
    if lease.ends <= now then
      force_spend(false, lease.ends - 1, leasing.minus(terms, lease.weight, lease.weight_parts, lease.used, lease.used_parts))
      leases_changed = true
    else
      live[#live + 1] = lease
    end
  end
  leases = live

  local has_cost, usage_count, report_count = unpack_from('>I1I1I2', text, at)
  local id = sub(text, at + 4, at + ID_BYTES + 3)
  local ttl = unpack_from('>I7', text, at + ID_BYTES + 4)
  at = at + ID_BYTES + 11

  if usage_count > 0 then
    local index = find(leases, id)
    local known, known_weight, known_parts = 0, 0, 0
    if index then
      known, known_weight, known_parts = leases[index].spent, leasing.reported(leases[index])
    end
    for _ = 1, usage_count do
      local instant, total, weight, weight_parts = unpack_from('>I7I7I7I7', text, at)
      at = at + 28
      if total > known then
        force_spend(true, math.min(instant, own_now), leasing.minus(terms, weight, weight_parts, known_weight, known_parts))
        known, known_weight, known_parts = total, weight, weight_parts
      end
    end
    -- A node takes a new id only after a reply under the old one, so older marks of this node are dropped.
    local remaining = {}
    for number = 1, #leases do
      local lease = leases[number]
      local is_old_mark = lease.spent == lease.amount and sub(lease.id, 1, 8) == sub(id, 1, 8)
      if lease.id ~= id and not is_old_mark then
        remaining[#remaining + 1] = lease
      end
    end
    leases, leases_changed = remaining, true
    if #leases < MAX_LEASES then
      leases[#leases + 1] = {
        id = id, amount = known, spent = known, ends = own_now + ttl,
        weight = known_weight, weight_parts = known_parts, used = known_weight, used_parts = known_parts,
      }
    end
  end

  for _ = 1, report_count do
    local index = find(leases, sub(text, at, at + ID_BYTES - 1))
    local closed, spent, used, used_parts = unpack_from('>I1I7I7I7', text, at + ID_BYTES)
    at = at + ID_BYTES + 22
    if index then
      local lease = leases[index]
      if spent > lease.amount then
        spent, used, used_parts = lease.amount, lease.weight, lease.weight_parts
      end
      if spent > lease.spent then
        force_spend(false, own_now, leasing.minus(terms, used, used_parts, lease.used, lease.used_parts))
        lease.spent, lease.used, lease.used_parts, leases_changed = spent, used, used_parts, true
      end
      if closed == 1 or lease.spent == lease.amount then
        table.remove(leases, index)
        leases_changed = true
      end
    end
  end

  local reserved, reserved_parts = 0, 0
  for index = 1, #leases do
    local lease = leases[index]
    reserved, reserved_parts = leasing.capped(terms, leasing.plus(terms, reserved, reserved_parts,
      leasing.minus(terms, lease.weight, lease.weight_parts, lease.used, lease.used_parts)))
  end
  local function fits(more, more_parts)
    more, more_parts = leasing.plus(terms, reserved, reserved_parts, more, more_parts)
    return leasing.fits(terms, more, more_parts, a, b, c, d)
  end

  local charged = 0
  -- The last of the terms is the position after them; the cost is before it.
  local cost, cost_parts = terms[#terms - 1], 0
  if leasing.size > 0 then
    cost, cost_parts = terms[#terms - 2], cost
  end
  if has_cost == 1 and fits(cost, cost_parts) then
    a, b, c, d = meter.take(terms, a, b, c, d)
    charged, changed = 1, true
  end

  local granted = 0
  if max_end then
    ttl = math.min(ttl, usable_ttl(max_end - own_now))
  end
  if ttl > 0 and #leases < MAX_LEASES and not find(leases, id) then
    local number = 1
    while at <= #text do
      local amount, weight, weight_parts, free, free_parts = unpack_from('>I7I7I7I7I7', text, at)
      if fits(free, free_parts) then
        local ends = own_now + ttl + (ttl - ttl % 100) / 100 + 10000
        leases[#leases + 1] = {
          id = id, amount = amount, spent = 0, ends = ends,
          weight = weight, weight_parts = weight_parts, used = 0, used_parts = 0,
        }
        granted, leases_changed = number, true
        break
      end
      at, number = at + 35, number + 1
    end
  end

  if changed or leases_changed then
    write_client(key, leases_key, tag, meter, terms, leases, leases_changed, others, other_leases, a, b, c, d)
  end
  return pack('>I1I1I1I4', DECIDED, charged, granted, #own) .. own .. pack('>I4', #own_leases) .. own_leases
end

local replies = {pack('>I7', now)}
for request_index = 1, #KEYS / 2 do
  replies[request_index + 1] = apply_request(request_index)
end
return concat(replies)
