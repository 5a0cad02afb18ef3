-- Requests of several charges, of which there may be several, on keys that others name too, or under
-- several limits: states stay here until the whole batch was decided, and each key is written once.

-- What is known of each key: `sections` that no request has opened, `cells` with a state for each
-- section that one has, the latest first, and whether to write all of them (`mixed`).
local records = {}
-- The records that have to be written.
local changed = {}

local function change(record)
  if not record.changed then
    changed[#changed + 1], record.changed = record, true
  end
end

local migrations = {}
for at = 3, #ARGV, 4 do
  migrations[ARGV[at] .. ARGV[at + 1]] = {found = ARGV[at + 2], migrated = ARGV[at + 3]}
end

-- Reads a key. Nothing when it is no string at all: its request fails, the others go on.
local function record_of(place)
  local record = records[place]
  if record == nil then
    local raw, partial = raws[place], false
    if raw == nil then
      -- As much as any state takes, and of a log its beginning.
      raw = redis.pcall('GETRANGE', KEYS[place], 0, 127)
      if type(raw) == 'table' then
        records[place] = false
        return nil
      end
      partial = not is_mixed(raw)
      raw = partial and raw or call('GET', KEYS[place])
    end
    raw = raw or ''
    record = {place = place, cells = {}, sections = split_live(raw), partial = partial, mixed = is_mixed(raw)}
    records[place] = record
  end
  return record or nil
end

-- Reads the section of a price from its key, and makes it the first. Nothing when another limit was used
-- last and nothing is to be taken over from it, or when the section can't be read.
local function open(record, price)
  local key, meter = KEYS[record.place], price.meter
  local shared = sub(price.tag, 3, 2 + price.shared)
  local place = find_section(record.sections, shared)
  local migration = migrations[record.place .. price.tag]
  local is_first = #record.cells == 0 and (place == 1 or #record.sections == 0)
  if not is_first and not migration then
    return nil
  end
  if not is_first and record.partial and #record.cells == 0 then
    record.sections, record.partial = split(call('GET', key) or ''), false
  end
  local section = place and record.sections[place] or ''
  if not is_first then
    -- If the own section changed since, it stays: it counts all that this limit admitted.
    if section == migration.found then
      section = migration.migrated
    end
    record.mixed = true
  end
  local state
  if is_bare(section) then
    state = {meter.fresh(key, price.length)}
  elseif meter.open then
    state = {meter.open(price, key, section, byte(section, 2) + 1, not (is_first and record.partial))}
  else
    state = {meter.read(section, byte(section, 2) + 1)}
  end
  if not state[1] then
    return nil
  end
  if place then
    table.remove(record.sections, place)
  end
  local cell = {record = record, price = price, state = state, section = section}
  table.insert(record.cells, 1, cell)
  if not is_first then
    change(record)
  end
  return cell
end

-- The state of a key that is charged at a price.
local function opened(place, price)
  local record = record_of(place)
  if not record then
    return nil
  end
  local cells = record.cells
  for index = 1, #cells do
    local cell = cells[index]
    local known = cell.price
    if known.tag == price.tag
      or sub(known.tag, 3, 2 + known.shared) == sub(price.tag, 3, 2 + price.shared) then
      if index > 1 then
        if not migrations[place .. price.tag] then
          return nil
        end
        table.insert(cells, 1, table.remove(cells, index))
        change(record)
      end
      cell.price = price
      return cell
    end
  end
  return open(record, price)
end

-- The bytes of a state after its tag, and until when they say anything.
local function write(price, state)
  if price.meter.whole then
    return price.meter.whole(price, state[1])
  end
  return price.meter.write(price, unpack(state))
end

local function answer(granted, cell, price, before)
  local kept
  if price.meter.tell then
    kept = price.meter.tell(price, before[1], cell.state[1])
  elseif cell.record.changed then
    kept = price.tag .. write(price, before)
  else
    kept = cell.section
  end
  answers[last + 1], answers[last + 2] = char(granted, #kept), kept
  last = last + 2
end

-- The sections of a record, and until when each says anything.
local function sections_of(record)
  local sections, ends = {}, {}
  for index = 1, #record.cells do
    local cell = record.cells[index]
    local kept, kept_until = write(cell.price, cell.state)
    sections[index], ends[index] = cell.price.tag .. kept, kept_until
  end
  add_sections(sections, ends, record.sections)
  return sections, ends
end

-- All that is kept under a key, for a request that can't read it.
local function whole(place)
  local record = records[place]
  if record and #record.cells > 0 then
    return join((sections_of(record)))
  end
  local raw = redis.pcall('GET', KEYS[place])
  return type(raw) == 'string' and raw or ''
end

-- Charges a request up to `count` times: `text` from `at` names its charges.
local function charge(text, at, charges, count)
  local places, cells, charged, befores, granted, readable = {}, {}, {}, {}, 0, true
  for index = 1, charges do
    local place, priced = byte(text, at + 2 * index - 2, at + 2 * index - 1)
    places[index], charged[index] = place, prices[priced]
    cells[index] = opened(place, prices[priced]) or false
    befores[index] = cells[index] and cells[index].state
    readable = readable and cells[index]
  end
  -- Identical requests go one by one; the first that does not fit ends them.
  while readable and granted < count do
    local undo, fits = {}, true
    for index = 1, charges do
      local cell, price = cells[index], charged[index]
      local after = {price.meter.take(price, unpack(cell.state))}
      if not after[1] then
        fits = false
        break
      end
      undo[index], cell.state = cell.state, after
    end
    if not fits then
      for index = #undo, 1, -1 do
        cells[index].state = undo[index]
      end
      break
    end
    granted = granted + 1
  end
  for index = 1, charges do
    if cells[index] then
      answer(granted, cells[index], charged[index], befores[index])
    else
      answer_unread(whole(places[index]))
    end
  end
  if granted > 0 then
    for index = 1, charges do
      change(cells[index].record)
    end
  end
end

local function finish()
  for index = 1, #changed do
    local record = changed[index]
    local key, cell = KEYS[record.place], record.cells[1]
    local price, state = cell.price, cell.state
    local is_same = sub(cell.section, 1, price.length) == price.tag
    if record.mixed or (price.meter.store and not is_same) then
      put_sections(key, sections_of(record))
    elseif price.meter.store then
      price.meter.store(price, state[1], price.tag)
    else
      local kept, kept_until = price.meter.write(price, unpack(state))
      if kept_until > now then
        call('PSETEX', key, milliseconds_until(kept_until), price.tag .. kept)
      else
        call('DEL', key)
      end
    end
  end
end

return charge, finish
