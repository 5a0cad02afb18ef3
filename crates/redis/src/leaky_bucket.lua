-- Leaky bucket. A state is the end of the last slot (micros, parts); zero parts are not written. Numbers and
-- terms are those of a token bucket with a capacity of the queue length plus one.

local function terms(text, at)
  return unpack_from('>I7I7I7I7I7', text, at)
end

local function read(raw, at)
  local length = #raw - at
  if length == 6 then
    return (unpack_from('>I7', raw, at)), 0
  elseif length == 13 then
    local micros, parts = unpack_from('>I7I7', raw, at)
    return micros, parts
  end
end

local function fresh()
  return 0, 0
end

local function take(terms, micros, parts)
  if micros < now then
    micros, parts = now, 0
  end
  micros, parts = micros + terms[4], parts + terms[5]
  if parts >= terms[1] then
    micros, parts = micros + 1, parts - terms[1]
  end
  local full = now + terms[2]
  if micros < full or (micros == full and parts <= terms[3]) then
    return micros, parts
  end
end

local function write(_, micros, parts)
  if parts > 0 then
    return pack('>I7I7', micros, parts), micros + 1
  end
  return pack('>I7', micros), micros
end

local refund
if REFUNDS then
  -- Refunds only the last slot, and only before it begins.
  function refund(terms, refund_token, micros, parts)
    if refund_token and (refund_token[2] ~= micros or refund_token[3] ~= parts) or terms[4] + terms[5] == 0 then
      return nil
    end
    micros, parts = micros - terms[4], parts - terms[5]
    if parts < 0 then
      micros, parts = micros - 1, parts + terms[1]
    end
    if micros > now or (micros == now and parts > 0) then
      return micros, parts
    end
  end
end

return {terms = terms, read = read, fresh = fresh, take = take, write = write, refund = refund}
