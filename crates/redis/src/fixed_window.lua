-- Fixed window. A state is the end of the window, aligned to the epoch, and the number of tokens spent in it.
-- The number has four bytes if it fits, else seven.
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

-- Returns the state in the current window. A window in the future, opened by a clock that was ahead, stays.
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
  function refund(terms, refund_token, ends, spent)
    ends, spent = current(terms[1], ends, spent)
    local taken = math.min(terms[3], spent)
    if (not refund_token or ends == refund_token[2]) and taken > 0 then
      return ends, spent - taken
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

  function leasing.advance(terms, ends, spent)
    return current(terms[1], ends, spent)
  end

  -- Returns the key's own time, and the latest end of a lease.
  function leasing.time(terms, ends)
    return math.max(now, ends - terms[1]), ends
  end

  -- Returns whether `more` tokens fit.
  function leasing.fits(terms, more, _, _, spent)
    return spent + more <= terms[2]
  end

  -- Spends `more` tokens at an instant that may be past, whether or not they fit. The sum is at most the
  -- amount, unless it is unbounded. Tokens of a past window no longer count.
  function leasing.force_spend(terms, unbounded, at, more, _, ends, spent)
    local most = unbounded and MAX_AMOUNT or terms[2]
    if at - at % terms[1] + terms[1] >= ends then
      spent = math.max(spent, math.min(spent + more, most))
    end
    return ends, spent
  end

  -- Returns the longest time for which leased tokens count after the end of their lease: the rest of the window.
  function leasing.counts_for(terms)
    return terms[1]
  end
end

return {
  terms = terms, read = read, fresh = fresh, take = take, write = write, refund = refund, leasing = leasing,
}
