-- Values of one client under several limits. A value is one section, or the byte 2 and sections, each
-- after its length; the limit that was used last is first. A section is a tag and what is kept under
-- that limit. Tags whose bytes from the third on begin alike, as far as the limits of a price share a
-- state, name one section.

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

-- Whether a value has several sections.
local function is_mixed(raw)
  return byte(raw) == 2
end

-- The sections of a value. One that can't be split is a single section that no limit finds.
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

-- The value of sections.
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

-- The place of the section whose tag goes on with `shared` after its second byte.
local function find_section(sections, shared)
  for index = 1, #sections do
    if byte(sections[index]) == 1 and sub(sections[index], 3, 2 + #shared) == shared then
      return index
    end
  end
end

-- The window or hold in a tag: seven bits to a byte, the lowest first.
local function window_of(section)
  local at, scale, window = 4, 1, 0
  while true do
    local part = byte(section, at) or 0
    window = window + part % 128 * scale
    if part < 128 then
      return window
    end
    at, scale = at + 1, scale * 128
  end
end

-- Whether a section has no state: its client is new.
local function is_bare(section)
  return #section <= (byte(section, 2) or 0)
end

-- From when on a state equals that of a new client; 0 when it can't be read.
local function state_ends(section)
  local length, id = byte(section, 2, 3)
  if not id or not makers[id] then
    return 0
  end
  local meter, terms = meter_of(id), {window_of(section)}
  if meter.open then
    local state = meter.open(terms, nil, section, length + 1, true)
    return state and meter.ends(terms, state) or 0
  end
  local a, b, c, d = meter.read(section, length + 1)
  if not a then
    return 0
  end
  local _, ends = meter.write(terms, a, b, c, d)
  return ends
end

-- The sections of a value, without those of limits that were not used last and equal a new client's.
local function split_live(raw)
  local sections = split(raw)
  for index = #sections, 2, -1 do
    if state_ends(sections[index]) <= now then
      table.remove(sections, index)
    end
  end
  return sections
end

-- The sections of a key to be written, and until when. `ends` is until when each says anything, the first
-- of them the limit that was used last. That stays while others do, without its state if need be, so that
-- it does not take them over again.
local function live_sections(sections, ends)
  local live, kept_until = {sections[1]}, ends[1] or 0
  for index = 2, #sections do
    if ends[index] > now then
      live[#live + 1], kept_until = sections[index], math.max(kept_until, ends[index])
    end
  end
  if kept_until > now and ends[1] <= now then
    live[1] = sub(live[1], 1, byte(live[1], 2))
  end
  return live, kept_until
end

-- Writes the sections of a key.
local function put_sections(key, sections, ends)
  local live, kept_until = live_sections(sections, ends)
  if kept_until > now then
    redis.call('PSETEX', key, milliseconds_until(kept_until), join(live))
  else
    redis.call('DEL', key)
  end
end

-- Adds sections of states to those to be written.
local function add_sections(sections, ends, others)
  for index = 1, #others do
    sections[#sections + 1], ends[#ends + 1] = others[index], state_ends(others[index])
  end
end
