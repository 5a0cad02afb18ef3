-- Token bucket and leaky bucket in uniform_one.lua and uniform_batch.lua: the same states and terms as in
-- token_bucket.lua. The first part reads the terms, the second charges `key`. It sets `granted` to 1, or leaves it
-- at 0 for a denial. It sets `granted` to nil if the value is not of this limit alone.

local whole, depth, depth_parts, cost, cost_parts = unpack_from('>I7I7I7I7I7', ARGV[2])
local full, is_token_bucket = now + depth, sub(tag, 3, 3) == '\1'
--[[ charge ]]
local micros, parts, given, given_parts = 0, 0, 0, 0
if raw ~= '' then
  if sub(raw, 1, length) ~= tag then
    granted = nil
  elseif size == 7 then
    micros = unpack_from('>I7', raw, length + 1)
  elseif size == 14 then
    micros, parts = unpack_from('>I7I7', raw, length + 1)
  elseif size == 28 and is_token_bucket then
    micros, parts, given, given_parts = unpack_from('>I7I7I7I7', raw, length + 1)
    local ends, ends_parts = micros + given, parts + given_parts
    if ends_parts >= whole then
      ends, ends_parts = ends + 1, ends_parts - whole
    end
    if ends < now or (ends == now and ends_parts == 0) then
      given, given_parts = 0, 0
    end
  else
    granted = nil
  end
end
if granted then
  if micros < now then
    micros, parts = now, 0
  end
  micros, parts = micros + cost, parts + cost_parts
  if parts >= whole then
    micros, parts = micros + 1, parts - whole
  end
  if micros < full or (micros == full and parts <= depth_parts) then
    local state, expires_at
    if given > 0 or given_parts > 0 then
      state, expires_at = pack('>I7I7I7I7', micros, parts, given, given_parts), micros + given + 2
    elseif parts > 0 then
      state, expires_at = pack('>I7I7', micros, parts), micros + 1
    else
      state, expires_at = pack('>I7', micros), micros
    end
    call('PSETEX', key, milliseconds_until(expires_at), tag .. state)
    granted = 1
  end
end
