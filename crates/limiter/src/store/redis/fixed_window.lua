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
    return {ends, spent}
  elseif length == 13 then
    local ends, spent = unpack_from('>I7I7', raw, at)
    return {ends, spent}
  end
end

local function fresh()
  return {0, 0}
end

-- A window that is ahead of this moment was opened by a clock that was ahead; it stays.
local function current(terms, state)
  local ends = now - now % terms[1] + terms[1]
  if state[1] < ends then
    return ends, 0
  end
  return state[1], state[2]
end

local function take(terms, state)
  local ends, spent = current(terms, state)
  spent = spent + terms[3]
  if spent > terms[2] then
    return nil
  end
  return {ends, spent}
end

local function write(_, state)
  if state[2] == 0 then
    return '', 0
  end
  return pack(state[2] < 4294967296 and '>I7I4' or '>I7I7', state[1], state[2]), state[1]
end

local refund
if REFUNDS then
  function refund(terms, state, slip)
    local ends, spent = current(terms, state)
    local taken = math.min(terms[3], spent)
    if ends == slip[2] and taken > 0 then
      return {ends, spent - taken}
    end
  end
end

return {terms = terms, read = read, fresh = fresh, take = take, write = write, refund = refund}
