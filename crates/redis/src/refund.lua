-- Refunds charges, each as far as it still counts; releases or renews slots in flight.
--
-- KEYS     one key for each refund
-- ARGV     one for each refund: algorithm; length and bytes that have to follow the first two bytes of the
--          stored tag; terms of the limit and the cost; the refund token: time of the charge, end of its slot
--          or window, parts. Without a refund token the latest charge is refunded. For slots in flight, 1 to
--          renew or 0 to release them follows, and the tag for a state that is not stored yet
--
-- Returns one byte for each refund: 1 if anything was refunded, or if the slots are held.

-- The slots in flight of each key. They are read once, and written once at the end.
local opened, changed = {}, {}

-- Renews or releases slots in flight. Without a stored state it begins a new one.
local function amend(meter, terms, key, sections, section_index, mixed, refund_token_at, text)
  local id, _, _, renews = unpack_from('>I7I7I7I1', text, refund_token_at)
  local state = opened[key]
  if not state then
    local section = section_index and sections[section_index]
    if section and not has_no_state(section) then
      state = meter.open(terms, key, section, byte(section, 2) + 1, mixed)
    else
      state = meter.fresh(key, section or sub(text, refund_token_at + 22))
    end
    if not state then
      return false
    end
    state.shared = sub(text, 3, 2 + byte(text, 2))
    state.is_alone = not mixed and (section_index or #sections == 0)
    opened[key] = state
  end
  local is_held, has_changed = meter.amend(terms, id, renews == 1, state)
  if has_changed then
    changed[key] = state
  end
  return is_held
end

-- Writes slots in flight beside the states of other limits. The key is read again, since other refunds of this
-- call may have changed those states. With the most limits that are stored, the slots replace the state of the
-- limit that was not used for longest: a slot that is reported as held must be counted.
local function put_beside(key, state)
  local sections = split_live(redis.call('GET', key) or '')
  local section_index = find_section(sections, state.shared) or math.min(#sections + 1, MAX_LIMITS)
  sections[section_index] = state[6] .. meter_of(6).write_all(nil, state)
  local written, ends = {}, {}
  add_sections(written, ends, sections)
  put_sections(key, written, ends)
end

-- Refunds a charge in one section. Returns the new section and when it expires; nil if nothing was refunded.
local function refund_section(meter, terms, refund_token, section)
  local tag = sub(section, 1, byte(section, 2))
  if meter.open then
    -- Without a key, the meter does not write to Redis.
    local state = meter.open(terms, nil, section, #tag + 1, true)
    if not state or not meter.refund(terms, refund_token, state) then
      return nil
    end
    local bytes, expires_at = meter.write_all(terms, state)
    return tag .. bytes, expires_at
  end
  local a, b, c, d = meter.read(section, #tag + 1)
  if a then
    a, b, c, d = meter.refund(terms, refund_token, a, b, c, d)
  end
  if a then
    local bytes, expires_at = meter.write(terms, a, b, c, d)
    return tag .. bytes, expires_at
  end
end

local function refund(key, text)
  local id, length = byte(text, 1, 2)
  local meter = meter_of(id)
  local terms = {meter.terms(text, 3 + length)}
  local refund_token = terms[#terms] <= #text and {unpack_from('>I7I7I7', text, terms[#terms])}
  local raw = redis.call('GETRANGE', key, 0, 127)
  local mixed = is_mixed(raw)
  local sections = split(mixed and redis.call('GET', key) or raw)
  local section_index = find_section(sections, sub(text, 3, 2 + length))
  if meter.amend then
    return refund_token and amend(meter, terms, key, sections, section_index, mixed, terms[#terms], text)
  end
  if not section_index then
    return false
  end
  if meter.open and not mixed then
    local state = meter.open(terms, key, raw, byte(raw, 2) + 1)
    return state and meter.refund(terms, refund_token, state)
  end
  local section, expires_at = refund_section(meter, terms, refund_token, sections[section_index])
  if not section then
    return false
  end
  local live = {section}
  if mixed then
    local written, ends = {}, {}
    add_sections(written, ends, sections)
    written[section_index], ends[section_index] = section, expires_at
    live, expires_at = live_sections(written, ends)
  elseif not has_no_state(section) then
    -- A bucket that is full again is stored too: its expiry must not be in the past.
    expires_at = math.max(expires_at, now + 1)
  end
  if expires_at <= now then
    redis.call('DEL', key)
  elseif meter.open then
    redis.call('PSETEX', key, milliseconds_until(expires_at), join(live))
  else
    -- The present time to live is long enough, since the lease script adds time for refunds. A shorter one could
    -- be too short: ended leases may still have to be added to the state.
    redis.call('SET', key, join(live), 'KEEPTTL')
  end
  return true
end

local replies = {}
for index = 1, #KEYS do
  replies[index] = refund(KEYS[index], ARGV[index]) and '\1' or '\0'
end
for key, state in pairs(changed) do
  if state.is_alone then
    meter_of(6).store(nil, state, state[6])
  else
    put_beside(key, state)
  end
end
return table.concat(replies)
