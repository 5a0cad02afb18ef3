-- Sliding window. A state is the end of the window, the number of tokens spent in it, and the number spent in
-- the window before. The numbers have four bytes if both fit, else seven.
--
-- Terms: window, amount, cost.

local function terms(text, at)
  return unpack_from('>I7I7I7', text, at)
end

local function read(raw, at)
  local length = #raw - at
  if length == 14 then
    local ends, spent, before = unpack_from('>I7I4I4', raw, at)
    return ends, spent, before
  elseif length == 20 then
    local ends, spent, before = unpack_from('>I7I7I7', raw, at)
    return ends, spent, before
  end
end

local function fresh()
  return 0, 0, 0
end

local function rolled(window, ends, spent, before)
  local this = now - now % window + window
  if ends >= this then
    return ends, spent, before
  elseif ends + window == this then
    return this, 0, spent
  end
  return this, 0, 0
end

-- Returns a x b as (multiples of 2^52, rest), for integers up to 2^52 and 2^49.
local function product(a, b)
  local a0, b0 = a % 67108864, b % 67108864
  local a1, b1 = (a - a0) / 67108864, (b - b0) / 67108864
  local middle = a1 * b0 + a0 * b1
  local middle0 = middle % 67108864
  local low = a0 * b0 + middle0 * 67108864
  local low0 = low % 4503599627370496
  return a1 * b1 + (middle - middle0) / 67108864 + (low - low0) / 4503599627370496, low0
end

-- Returns whether the `left / window` part of `before` is at most `room` tokens.
local function fits(before, left, room, window)
  local carried, free = before * left, room * window
  if carried < 9007199254740992 and free < 9007199254740992 then
    return carried <= free
  end
  local carried1, carried0 = product(before, left)
  local free1, free0 = product(room, window)
  return carried1 < free1 or (carried1 == free1 and carried0 <= free0)
end

local function take(terms, ends, spent, before)
  local window = terms[1]
  ends, spent, before = rolled(window, ends, spent, before)
  spent = spent + terms[3]
  local room = terms[2] - spent
  -- If the clock was set back, the window starts in the future, and at most all of the window before counts.
  local left = ends - now
  if left > window then
    left = window
  end
  if room >= 0 and fits(before, left, room, window) then
    return ends, spent, before
  end
end

local function write(terms, ends, spent, before)
  local small = spent < 4294967296 and before < 4294967296
  local raw = pack(small and '>I7I4I4' or '>I7I7I7', ends, spent, before)
  if spent > 0 then
    return raw, ends + terms[1]
  elseif before > 0 then
    return raw, ends
  end
  return '', 0
end

local refund
if REFUNDS then
  function refund(terms, refund_token, ends, spent, before)
    ends, spent, before = rolled(terms[1], ends, spent, before)
    if not refund_token or refund_token[2] == ends then
      local taken = math.min(terms[3], spent)
      if taken > 0 then
        return ends, spent - taken, before
      end
    elseif refund_token[2] + terms[1] == ends then
      local taken = math.min(terms[3], before)
      if taken > 0 then
        return ends, spent, before - taken
      end
    end
  end
end

local leasing
if LEASES then
  leasing = {size = 0}

  -- Returns the weight that was reported under the id of a lease.
  function leasing.reported(lease)
    return lease.spent, 0
  end

  -- Returns the weight of a lease and of its spent tokens: at most the amount of the limit.
  function leasing.read(terms, _, _, amount, spent)
    return math.min(amount, terms[2]), 0, math.min(spent, terms[2]), 0
  end

  function leasing.write()
    return ''
  end

  function leasing.plus(_, tokens, _, more)
    return tokens + more, 0
  end

  function leasing.capped(terms, tokens)
    return math.min(tokens, terms[2]), 0
  end

  function leasing.minus(_, tokens, _, less)
    return math.max(tokens - less, 0), 0
  end

  function leasing.advance(terms, ends, spent, before)
    return rolled(terms[1], ends, spent, before)
  end

  -- Returns the key's own time, and the latest end of a lease.
  function leasing.time(terms, ends)
    return math.max(now, ends - terms[1]), ends
  end

  -- Returns whether `more` tokens fit.
  function leasing.fits(terms, more, _, ends, spent, before)
    local room = terms[2] - spent - more
    return room >= 0 and fits(before, math.min(ends - now, terms[1]), room, terms[1])
  end

  -- Spends `more` tokens at an instant that may be past, whether or not they fit. The sum is at most the
  -- amount, unless it is unbounded. Tokens of the window before count in that window.
  function leasing.force_spend(terms, unbounded, at, more, _, ends, spent, before)
    local most, at_end = unbounded and MAX_AMOUNT or terms[2], at - at % terms[1] + terms[1]
    if at_end >= ends then
      spent = math.max(spent, math.min(spent + more, most))
    elseif at_end + terms[1] == ends then
      before = math.max(before, math.min(before + more, most))
    end
    return ends, spent, before
  end

  -- Returns the longest time for which leased tokens count after the end of their lease: the rest of the
  -- window, and the window after it.
  function leasing.counts_for(terms)
    return 2 * terms[1]
  end
end

return {
  terms = terms, read = read, fresh = fresh, take = take, write = write, refund = refund, leasing = leasing,
}
