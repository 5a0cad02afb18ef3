-- Token bucket. A state is the time at which the bucket is full again (micros, parts), then the refill time of
-- refunded tokens (micros, parts). Zeros at its end are not written. Each limit has its own number of parts per
-- microsecond. Every number is below 2^53, so doubles add and compare them exactly.
--
-- Terms: parts per microsecond, refill time of the whole bucket (micros, parts), of the cost (micros, parts).

local function terms(text, at)
  return unpack_from('>I7I7I7I7I7', text, at)
end

local function read(raw, at)
  local length = #raw - at
  if length == 6 then
    return (unpack_from('>I7', raw, at)), 0, 0, 0
  elseif length == 13 then
    local micros, parts = unpack_from('>I7I7', raw, at)
    return micros, parts, 0, 0
  elseif length == 27 then
    local micros, parts, given, given_parts = unpack_from('>I7I7I7I7', raw, at)
    return micros, parts, given, given_parts
  end
end

local function fresh()
  return 0, 0, 0, 0
end

-- Returns the refill time of refunded tokens; zero once no earlier refund token can be valid any more.
local function still_given(terms, micros, parts, given, given_parts)
  micros, parts = micros + given, parts + given_parts
  if parts >= terms[1] then
    micros, parts = micros + 1, parts - terms[1]
  end
  if micros < now or (micros == now and parts == 0) then
    return 0, 0
  end
  return given, given_parts
end

local function take(terms, micros, parts, given, given_parts)
  if given > 0 or given_parts > 0 then
    given, given_parts = still_given(terms, micros, parts, given, given_parts)
  end
  if micros < now then
    micros, parts = now, 0
  end
  micros, parts = micros + terms[4], parts + terms[5]
  if parts >= terms[1] then
    micros, parts = micros + 1, parts - terms[1]
  end
  local full = now + terms[2]
  if micros < full or (micros == full and parts <= terms[3]) then
    return micros, parts, given, given_parts
  end
end

local function write(_, micros, parts, given, given_parts)
  if given > 0 or given_parts > 0 then
    return pack('>I7I7I7I7', micros, parts, given, given_parts), micros + given + 2
  elseif parts > 0 then
    return pack('>I7I7', micros, parts), micros + 1
  end
  return pack('>I7', micros), micros
end

local refund
if REFUNDS then
  local function is_later(micros, parts, than, than_parts)
    return micros > than or (micros == than and parts > than_parts)
  end

  local function plus(micros, parts, more, more_parts, whole)
    micros, parts = micros + more, parts + more_parts
    if parts >= whole then
      return micros + 1, parts - whole
    end
    return micros, parts
  end

  -- Returns the difference, at least zero.
  local function minus(micros, parts, less, less_parts, whole)
    if not is_later(micros, parts, less, less_parts) then
      return 0, 0
    elseif parts < less_parts then
      return micros - less - 1, parts + whole - less_parts
    end
    return micros - less, parts - less_parts
  end

  function refund(terms, refund_token, due, due_parts, given, given_parts)
    local whole = terms[1]
    given, given_parts = still_given(terms, due, due_parts, given, given_parts)
    -- A refund token contains the full time plus all refunds before it: a sum that refunds do not change.
    local line, line_parts = plus(due, due_parts, given, given_parts, whole)
    local micros, parts = line, line_parts
    if refund_token then
      micros, parts = refund_token[2], refund_token[3]
    end
    local is_last = micros == line and parts == line_parts
    micros, parts = minus(micros, parts, given, given_parts, whole)
    micros, parts = minus(micros, parts, now, 0, whole)
    if is_later(micros, parts, terms[4], terms[5]) then
      micros, parts = terms[4], terms[5]
    end
    local used, used_parts = minus(due, due_parts, now, 0, whole)
    if is_later(micros, parts, used, used_parts) then
      micros, parts = used, used_parts
    end
    if micros == 0 and parts == 0 then
      return nil
    end
    due, due_parts = minus(due, due_parts, micros, parts, whole)
    if not is_last then
      given, given_parts = plus(given, given_parts, micros, parts, whole)
    end
    return due, due_parts, given, given_parts
  end
end

local leasing
if LEASES then
  leasing = {size = 28}

  -- Returns the weight that was reported under the id of a lease: the refill time (micros, parts).
  function leasing.reported(lease)
    return lease.used, lease.used_parts
  end

  -- Returns the weight of a lease and of its spent tokens, (micros, parts) each.
  function leasing.read(_, raw, at)
    return unpack_from('>I7I7I7I7', raw, at)
  end

  function leasing.write(lease)
    return pack('>I7I7I7I7', lease.weight, lease.weight_parts, lease.used, lease.used_parts)
  end

  local function plus(terms, micros, parts, more, more_parts)
    micros, parts = micros + more, parts + more_parts
    if parts >= terms[1] then
      return micros + 1, parts - terms[1]
    end
    return micros, parts
  end
  leasing.plus = plus

  -- Returns at most the weight of a whole bucket.
  function leasing.capped(terms, micros, parts)
    if micros > terms[2] or (micros == terms[2] and parts > terms[3]) then
      return terms[2], terms[3]
    end
    return micros, parts
  end

  -- Returns the difference, at least zero.
  function leasing.minus(terms, micros, parts, less, less_parts)
    if micros < less or (micros == less and parts <= less_parts) then
      return 0, 0
    elseif parts < less_parts then
      return micros - less - 1, parts + terms[1] - less_parts
    end
    return micros - less, parts - less_parts
  end

  function leasing.advance(terms, micros, parts, given, given_parts)
    if given > 0 or given_parts > 0 then
      given, given_parts = still_given(terms, micros, parts, given, given_parts)
    end
    return micros, parts, given, given_parts
  end

  -- Returns the key's own time. Leases of a bucket have no latest end.
  function leasing.time()
    return now, nil
  end

  -- Returns whether tokens of this weight fit.
  function leasing.fits(terms, more, more_parts, micros, parts)
    local full = now + terms[2]
    if micros > full then
      return false
    elseif micros < now then
      micros, parts = now, 0
    end
    micros, parts = plus(terms, micros, parts, more, more_parts)
    return micros < full or (micros == full and parts <= terms[3])
  end

  -- Spends tokens at an instant that may be past, whether or not they fit. The debt is at most another whole
  -- bucket. Unbounded spending happens now, with a debt of at most MAX_DEBT.
  function leasing.force_spend(terms, unbounded, at, more, more_parts, micros, parts, given, given_parts)
    local base, base_parts = micros, parts
    if unbounded then
      at = now
    end
    if base < at then
      base, base_parts = at, 0
    end
    base, base_parts = plus(terms, base, base_parts, more, more_parts)
    local most, most_parts
    if unbounded then
      most, most_parts = at + terms[2] + MAX_DEBT, terms[3]
    else
      most, most_parts = plus(terms, at + terms[2], terms[3], terms[2], terms[3])
    end
    if base > most or (base == most and base_parts > most_parts) then
      base, base_parts = most, most_parts
    end
    if base < micros or (base == micros and base_parts < parts) then
      base, base_parts = micros, parts
    end
    return base, base_parts, given, given_parts
  end

  -- Returns the longest time for which leased tokens count after the end of their lease: their refill time,
  -- at most that of two buckets. Added are the parts of a microsecond of each lease, and the tokens that were
  -- refunded or may be refunded before the next request.
  function leasing.counts_for(terms, unreported, micros, given)
    return math.min(unreported, 2 * terms[2]) + given + math.max(micros - now, 0) + MAX_LEASES + 4
  end
end

return {
  terms = terms, read = read, fresh = fresh, take = take, write = write, refund = refund, leasing = leasing,
}
