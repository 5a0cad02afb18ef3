-- Charges of the general case: several charges per request, identical requests, keys that several requests use,
-- or several limits of one key. States stay in memory until the whole batch is decided; then each key is
-- written once.

-- The record of each key: `sections` that no request has opened, `cells` with the state of each opened section,
-- the latest first, and `mixed`, which is set if all of them have to be written.
local records = {}
-- The records that have to be written.
local changed = {}

local function mark_changed(record)
  if not record.changed then
    changed[#changed + 1], record.changed = record, true
  end
end

local migrations = {}
for at = 3, #ARGV, 4 do
  migrations[ARGV[at] .. ARGV[at + 1]] = {found = ARGV[at + 2], migrated = ARGV[at + 3]}
end

-- Returns the record of a key. Returns nil if the key is no string: only its own request fails.
local function record_of(key_index)
  local record = records[key_index]
  if record == nil then
    local raw, partial = raws[key_index], false
    if raw == nil then
      -- Enough bytes for any state, and for the header of a log.
      raw = redis.pcall('GETRANGE', KEYS[key_index], 0, 127)
      if type(raw) == 'table' then
        records[key_index] = false
        return nil
      end
      partial = not is_mixed(raw)
      raw = partial and raw or call('GET', KEYS[key_index])
    end
    raw = raw or ''
    record = {key_index = key_index, cells = {}, sections = split_live(raw), partial = partial, mixed = is_mixed(raw)}
    records[key_index] = record
  end
  return record or nil
end

-- Opens the section of a limit, and makes it the first. Returns nil if the section is not valid, or if another
-- limit was used last and there is no migration from it.
local function open(record, limit)
  local key, meter = KEYS[record.key_index], limit.meter
  local shared = sub(limit.tag, 3, 2 + limit.shared)
  local section_index = find_section(record.sections, shared)
  local migration = migrations[record.key_index .. limit.tag]
  local is_first = #record.cells == 0 and (section_index == 1 or #record.sections == 0)
  if not is_first and not migration then
    return nil
  end
  if not is_first and record.partial and #record.cells == 0 then
    record.sections, record.partial = split(call('GET', key) or ''), false
  end
  local section = section_index and record.sections[section_index] or ''
  if not is_first then
    -- A section that has changed since it was found stays: it counts everything that this limit admitted.
    if section == migration.found then
      section = migration.migrated
    end
    record.mixed = true
  end
  local state
  if has_no_state(section) then
    state = {meter.fresh(key, limit.length)}
  elseif meter.open then
    state = {meter.open(limit, key, section, byte(section, 2) + 1, not (is_first and record.partial))}
  else
    state = {meter.read(section, byte(section, 2) + 1)}
  end
  if not state[1] then
    return nil
  end
  if section_index then
    table.remove(record.sections, section_index)
  end
  local cell = {record = record, limit = limit, state = state, section = section}
  table.insert(record.cells, 1, cell)
  if not is_first then
    mark_changed(record)
  end
  return cell
end

-- Returns the cell of a key and a limit. Opens it if necessary.
local function open_cell(key_index, limit)
  local record = record_of(key_index)
  if not record then
    return nil
  end
  local cells = record.cells
  for index = 1, #cells do
    local cell = cells[index]
    local known = cell.limit
    if known.tag == limit.tag
      or sub(known.tag, 3, 2 + known.shared) == sub(limit.tag, 3, 2 + limit.shared) then
      if index > 1 then
        if not migrations[key_index .. limit.tag] then
          return nil
        end
        table.insert(cells, 1, table.remove(cells, index))
        mark_changed(record)
      end
      cell.limit = limit
      return cell
    end
  end
  return open(record, limit)
end

-- Returns the bytes of a state without its tag, and when it expires.
local function write(limit, state)
  if limit.meter.write_all then
    return limit.meter.write_all(limit, state[1])
  end
  return limit.meter.write(limit, unpack(state))
end

local function reply(granted, cell, limit, before)
  local bytes
  if limit.meter.summary then
    bytes = limit.meter.summary(limit, before[1], cell.state[1])
  elseif cell.record.changed then
    bytes = limit.tag .. write(limit, before)
  else
    bytes = cell.section
  end
  replies[last + 1], replies[last + 2] = char(granted, #bytes), bytes
  last = last + 2
end

-- Returns the sections of a record, and when each expires.
local function sections_of(record)
  local sections, ends = {}, {}
  for index = 1, #record.cells do
    local cell = record.cells[index]
    local bytes, expires_at = write(cell.limit, cell.state)
    sections[index], ends[index] = cell.limit.tag .. bytes, expires_at
  end
  add_sections(sections, ends, record.sections)
  return sections, ends
end

-- Returns the whole value of a key, for a request that can't use it.
local function whole_value(key_index)
  local record = records[key_index]
  if record and #record.cells > 0 then
    return join((sections_of(record)))
  end
  local raw = redis.pcall('GET', KEYS[key_index])
  return type(raw) == 'string' and raw or ''
end

-- Charges a request up to `count` times. Its charges are in `text` from `at` on.
local function charge(text, at, charges, count)
  local key_indexes, cells, charged, befores, granted, readable = {}, {}, {}, {}, 0, true
  for index = 1, charges do
    local key_index, limit_index = byte(text, at + 2 * index - 2, at + 2 * index - 1)
    key_indexes[index], charged[index] = key_index, limits[limit_index]
    cells[index] = open_cell(key_index, limits[limit_index]) or false
    befores[index] = cells[index] and cells[index].state
    readable = readable and cells[index]
  end
  -- Identical requests are charged one by one, up to the first that does not fit.
  while readable and granted < count do
    local undo, fits = {}, true
    for index = 1, charges do
      local cell, limit = cells[index], charged[index]
      local after = {limit.meter.take(limit, unpack(cell.state))}
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
      reply(granted, cells[index], charged[index], befores[index])
    else
      reply_unreadable(whole_value(key_indexes[index]))
    end
  end
  if granted > 0 then
    for index = 1, charges do
      mark_changed(cells[index].record)
    end
  end
end

local function finish()
  for index = 1, #changed do
    local record = changed[index]
    local key, cell = KEYS[record.key_index], record.cells[1]
    local limit, state = cell.limit, cell.state
    local is_same = sub(cell.section, 1, limit.length) == limit.tag
    if record.mixed or (limit.meter.store and not is_same) then
      put_sections(key, sections_of(record))
    elseif limit.meter.store then
      limit.meter.store(limit, state[1], limit.tag)
    else
      local bytes, expires_at = limit.meter.write(limit, unpack(state))
      if expires_at > now then
        call('PSETEX', key, milliseconds_until(expires_at), limit.tag .. bytes)
      else
        call('DEL', key)
      end
    end
  end
end

return charge, finish
