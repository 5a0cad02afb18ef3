-- Sliding window in uniform_one.lua and uniform_batch.lua, as in sliding_window.lua. See uniform_bucket.lua.
--
-- Only for limits with an amount x window below 2^53, so that `room * window` is exact. `before * left` may be
-- larger and rounded; then it is at least 2^53, and the cost does not fit.

local window, amount, cost = unpack_from('>I7I7I7', ARGV[2])
local this = now - now % window + window
--[[ charge ]]
local ends, spent, before = 0, 0, 0
if raw ~= '' then
  if sub(raw, 1, length) ~= tag then
    granted = nil
  elseif size == 15 then
    ends, spent, before = unpack_from('>I7I4I4', raw, length + 1)
  elseif size == 21 then
    ends, spent, before = unpack_from('>I7I7I7', raw, length + 1)
  else
    granted = nil
  end
end
if granted then
  if ends + window == this then
    ends, spent, before = this, 0, spent
  elseif ends < this then
    ends, spent, before = this, 0, 0
  end
  spent = spent + cost
  local room, left = amount - spent, ends - now
  -- If the clock was set back, the window starts in the future, and at most all of the window before counts.
  if left > window then
    left = window
  end
  if room >= 0 and before * left <= room * window then
    local is_small = spent < 4294967296 and before < 4294967296
    local state = pack(is_small and '>I7I4I4' or '>I7I7I7', ends, spent, before)
    call('PSETEX', key, milliseconds_until(ends + window), tag .. state)
    granted = 1
  end
end
