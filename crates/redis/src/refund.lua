-- Takes charges back, each as far as it still counts; releases or renews slots in flight.
--
-- KEYS     one key for each refund
-- ARGV     one for each refund: algorithm, length of what has to follow the first two bytes of the
--          stored tag, that, terms of the limit and the cost; instant of the charge, end of its
--          slot or window, parts. Without the latter three, what was spent last is given back. For slots
--          in flight these are followed by 1 to renew or 0 to release them, and by the tag under which a
--          state begins that is not stored
--
-- Answers with one byte for each refund: 1 when it gave anything back, or the slots are held.

-- Slots in flight by key: read once, and written once at the end.
local opened, changed = {}, {}

-- Renews or releases slots in flight. A value without a state of theirs gets one.
local function amend(meter, terms, key, sections, place, mixed, refund_token_at, text)
  local id, _, _, renews = unpack_from('>I7I7I7I1', text, refund_token_at)
  local state = opened[key]
  if not state then
    local section = place and sections[place]
    if section and not is_bare(section) then
      state = meter.open(terms, key, section, byte(section, 2) + 1, mixed)
    else
      state = meter.fresh(key, section or sub(text, refund_token_at + 22))
    end
    if not state then
      return false
    end
    state.shared = sub(text, 3, 2 + byte(text, 2))
    state.is_alone = not mixed and (place or #sections == 0)
    opened[key] = state
  end
  local is_held, has_changed = meter.amend(terms, id, renews == 1, state)
  if has_changed then
    changed[key] = state
  end
  return is_held
end

-- Writes slots in flight beside the states of other limits, which refunds of this call may have changed.
local function put_beside(key, state)
  local sections = split(redis.call('GET', key) or '')
  local place = find_section(sections, state.shared) or #sections + 1
  sections[place] = state[6] .. meter_of(6).whole(nil, state)
  local written, ends = {}, {}
  add_sections(written, ends, sections)
  put_sections(key, written, ends)
end

-- Refunds in one section. The section after it and until when it says anything; nothing when nothing
-- was given back.
local function refund_section(meter, terms, refund_token, section)
  local tag = sub(section, 1, byte(section, 2))
  if meter.open then
    -- Without a key, it is not written.
    local state = meter.open(terms, nil, section, #tag + 1, true)
    if not state or not meter.refund(terms, refund_token, state) then
      return nil
    end
    local kept, kept_until = meter.whole(terms, state)
    return tag .. kept, kept_until
  end
  local a, b, c, d = meter.read(section, #tag + 1)
  if a then
    a, b, c, d = meter.refund(terms, refund_token, a, b, c, d)
  end
  if a then
    local kept, kept_until = meter.write(terms, a, b, c, d)
    return tag .. kept, kept_until
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
  local place = find_section(sections, sub(text, 3, 2 + length))
  if meter.amend then
    return refund_token and amend(meter, terms, key, sections, place, mixed, terms[#terms], text)
  end
  if not place then
    return false
  end
  if meter.open and not mixed then
    local state = meter.open(terms, key, raw, byte(raw, 2) + 1)
    return state and meter.refund(terms, refund_token, state)
  end
  local section, kept_until = refund_section(meter, terms, refund_token, sections[place])
  if not section then
    return false
  end
  local live = {section}
  if mixed then
    local written, ends = {}, {}
    add_sections(written, ends, sections)
    written[place], ends[place] = section, kept_until
    live, kept_until = live_sections(written, ends)
  elseif not is_bare(section) then
    -- Also a bucket that is full again is kept.
    kept_until = math.max(kept_until, now + 1)
  end
  if kept_until <= now then
    redis.call('DEL', key)
  elseif meter.open then
    redis.call('PSETEX', key, milliseconds_until(kept_until), join(live))
  else
    -- The time to live that its key has is long enough: a lease script has counted with refunds. A shorter
    -- one could be too short: leases that have ended may still have to be counted on top of the state.
    redis.call('SET', key, join(live), 'KEEPTTL')
  end
  return true
end

local answers = {}
for place = 1, #KEYS do
  answers[place] = refund(KEYS[place], ARGV[place]) and '\1' or '\0'
end
for key, state in pairs(changed) do
  if state.is_alone then
    meter_of(6).store(nil, state, state[6])
  else
    put_beside(key, state)
  end
end
return table.concat(answers)
