-- The value of a key. It has a section for each limit that is in use for the client. A value is one section, or
-- the byte 2 and several sections, each after its length; the limit that was used last is first. A section is
-- the tag of a limit and the state under that limit. Limits that share a state have tags with the same bytes
-- from the third on, up to a given length (`shared`). Such tags name the same section.

local byte, sub = string.byte, string.sub
local makers = {token_bucket, leaky_bucket, fixed_window, sliding_window, sliding_log, concurrency}
local meters = {}

local function meter_of(id)
  local meter = meters[id]
  if not meter then
    meter = makers[id]()
    meters[id] = meter
  end
  return meter
end

-- Returns whether a value has several sections.
local function is_mixed(raw)
  return byte(raw) == 2
end

-- Returns the sections of a value. A corrupt value is returned as one section that matches no limit.
local function split(raw)
  if raw == '' then
    return {}
  elseif not is_mixed(raw) then
    return {raw}
  end
  local sections, at = {}, 2
  while at + 3 <= #raw do
    local length = unpack_from('>I4', raw, at)
    sections[#sections + 1] = sub(raw, at + 4, at + 3 + length)
    at = at + 4 + length
  end
  return at == #raw + 1 and #sections > 1 and sections or {raw}
end

-- Returns the value with these sections.
local function join(sections)
  if #sections < 2 then
    return sections[1] or ''
  end
  local texts = {'\2'}
  for index = 1, math.min(#sections, MAX_LIMITS) do
    texts[2 * index], texts[2 * index + 1] = pack('>I4', #sections[index]), sections[index]
  end
  return table.concat(texts)
end

-- Returns the index of the section with `shared` in its tag, from the third byte on.
local function find_section(sections, shared)
  for index = 1, #sections do
    if byte(sections[index]) == 1 and sub(sections[index], 3, 2 + #shared) == shared then
      return index
    end
  end
end

-- Returns the window or hold time in the tag of a section: seven bits per byte, the lowest first.
local function window_of(section)
  local at, scale, window = 4, 1, 0
  while true do
    local digit = byte(section, at) or 0
    window = window + digit % 128 * scale
    if digit < 128 then
      return window
    end
    at, scale = at + 1, scale * 128
  end
end

-- Returns whether a section has no state: its client is new.
local function has_no_state(section)
  return #section <= (byte(section, 2) or 0)
end

-- Returns the time from which on a state equals that of a new client; 0 if it is not valid.
local function state_expires_at(section)
  local length, id = byte(section, 2, 3)
  if not id or not makers[id] then
    return 0
  end
  local meter, terms = meter_of(id), {window_of(section)}
  if meter.open then
    local state = meter.open(terms, nil, section, length + 1, true)
    return state and meter.expires_at(terms, state) or 0
  end
  local a, b, c, d = meter.read(section, length + 1)
  if not a then
    return 0
  end
  local _, expires_at = meter.write(terms, a, b, c, d)
  return expires_at
end

-- Returns the sections of a value without expired ones. The first, of the limit used last, is never left out.
local function split_live(raw)
  local sections = split(raw)
  for index = #sections, 2, -1 do
    if state_expires_at(sections[index]) <= now then
      table.remove(sections, index)
    end
  end
  return sections
end

-- Returns the sections of a key that have not expired, and the expiry of the key. `ends` is the expiry of each
-- section. The first section stays as long as any other, without its state if that has expired: otherwise its
-- limit would migrate the other states again.
local function live_sections(sections, ends)
  local live, expires_at = {sections[1]}, ends[1] or 0
  for index = 2, #sections do
    if ends[index] > now then
      live[#live + 1], expires_at = sections[index], math.max(expires_at, ends[index])
    end
  end
  if expires_at > now and ends[1] <= now then
    live[1] = sub(live[1], 1, byte(live[1], 2))
  end
  return live, expires_at
end

-- Writes the sections of a key, or deletes the key if all have expired.
local function put_sections(key, sections, ends)
  local live, expires_at = live_sections(sections, ends)
  if expires_at > now then
    redis.call('PSETEX', key, milliseconds_until(expires_at), join(live))
  else
    redis.call('DEL', key)
  end
end

-- Appends sections and their expiry to two lists.
local function add_sections(sections, ends, others)
  for index = 1, #others do
    sections[#sections + 1], ends[#ends + 1] = others[index], state_expires_at(others[index])
  end
end
