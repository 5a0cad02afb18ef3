-- Takes charges back, each as far as it still counts.
--
-- KEYS     one key for each refund
-- ARGV     one for each refund: algorithm, length of what has to follow the first two bytes of the
--          stored tag, that, terms of the limit and the cost; instant of the charge, end of its
--          slot or window, parts. Without the latter three, what was spent last is given back. A cost of
--          nothing holds slots in flight on
--
-- Answers with one byte for each refund: 1 when it gave anything back, or holds on.

local byte, sub = string.byte, string.sub
local meters = {}
local makers = {token_bucket, leaky_bucket, fixed_window, sliding_window, sliding_log, concurrency}

local function refund(key, text)
  local id, length = byte(text, 1, 2)
  local meter = meters[id] or makers[id]()
  meters[id] = meter
  local terms = {meter.terms(text, 3 + length)}
  local slip = terms[#terms] <= #text and {unpack_from('>I7I7I7', text, terms[#terms])}
  local raw = redis.call('GETRANGE', key, 0, 127)
  if byte(raw) ~= 1 or sub(raw, 3, 2 + length) ~= sub(text, 3, 2 + length) then
    return false
  end
  -- The first byte of a tag is the version of the format, the second tells how long it is.
  local tag = sub(raw, 1, byte(raw, 2))
  if meter.open then
    local state = meter.open(terms, key, raw, #tag + 1)
    return state and meter.refund(terms, slip, state)
  end
  local a, b, c, d = meter.read(raw, #tag + 1)
  if a then
    a, b, c, d = meter.refund(terms, slip, a, b, c, d)
  end
  if not a then
    return false
  end
  -- A refund never makes a state say more, so the time to live that its key has is long enough. A shorter
  -- one could be too short: leases that have ended may still have to be counted on top of it.
  local kept = meter.write(terms, a, b, c, d)
  if kept == '' then
    redis.call('DEL', key)
  else
    redis.call('SET', key, tag .. kept, 'KEEPTTL')
  end
  return true
end

local answers = {}
for place = 1, #KEYS do
  answers[place] = refund(KEYS[place], ARGV[place]) and '\1' or '\0'
end
return table.concat(answers)
