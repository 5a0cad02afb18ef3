-- Fixed window in uniform_one.lua and uniform_batch.lua, as in fixed_window.lua. See uniform_bucket.lua.

local window, amount, cost = unpack_from('>I7I7I7', ARGV[2])
local this = now - now % window + window
--[[ charge ]]
local ends, spent = 0, 0
if raw ~= '' then
  if sub(raw, 1, length) ~= tag then
    granted = nil
  elseif size == 11 then
    ends, spent = unpack_from('>I7I4', raw, length + 1)
  elseif size == 14 then
    ends, spent = unpack_from('>I7I7', raw, length + 1)
  else
    granted = nil
  end
end
if granted then
  -- A window in the future, opened by a clock that was ahead, stays.
  if ends < this then
    ends, spent = this, 0
  end
  spent = spent + cost
  if spent <= amount then
    local state = pack(spent < 4294967296 and '>I7I4' or '>I7I7', ends, spent)
    call('PSETEX', key, milliseconds_until(ends), tag .. state)
    granted = 1
  end
end
