-- Fixed window. A state is the end of the window, aligned to the epoch, and what was spent in it;
-- a count is written in four bytes where it fits.
--
-- Terms: window, amount, cost.

local function terms(text, at)
  return unpack_from('>I7I7I7', text, at)
end

local function read(raw, at)
  local length = #raw - at
  if length == 10 then
    local ends, spent = unpack_from('>I7I4', raw, at)
    return ends, spent
  elseif length == 13 then
    local ends, spent = unpack_from('>I7I7', raw, at)
    return ends, spent
  end
end

local function fresh()
  return 0, 0
end

-- A window that is ahead of this moment was opened by a clock that was ahead; it stays.
local function current(window, ends, spent)
  local this = now - now % window + window
  if ends < this then
    return this, 0
  end
  return ends, spent
end

local function take(terms, ends, spent)
  ends, spent = current(terms[1], ends, spent)
  spent = spent + terms[3]
  if spent <= terms[2] then
    return ends, spent
  end
end

local function write(_, ends, spent)
  if spent == 0 then
    return '', 0
  end
  return pack(spent < 4294967296 and '>I7I4' or '>I7I7', ends, spent), ends
end

local refund
if REFUNDS then
  function refund(terms, slip, ends, spent)
    ends, spent = current(terms[1], ends, spent)
    local taken = math.min(terms[3], spent)
    if (not slip or ends == slip[2]) and taken > 0 then
      return ends, spent - taken
    end
  end
end

return {terms = terms, read = read, fresh = fresh, take = take, write = write, refund = refund}
