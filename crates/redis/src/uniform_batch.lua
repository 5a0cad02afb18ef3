-- Charges different keys under one limit, each once and by the same cost.
--
-- The algorithm is inserted as text, without functions and tables: creating those is most of the cost of a short
-- call. A value that is not of this limit alone is returned without a charge. The node then sends the request
-- again, with the script in charge.lua.
--
-- KEYS     the keys
-- ARGV[1]  the tag of the limit
-- ARGV[2]  the terms of the limit and the cost, which is at least 1
--
-- Returns the same as charge.lua.

local call, sub, char = redis.call, string.sub, string.char
local tag, length = ARGV[1], #ARGV[1]
--[[ terms ]]

local raws, replies = call('MGET', unpack(KEYS)), {pack('>I7', now)}
for index = 1, #KEYS do
  local key, raw = KEYS[index], raws[index] or ''
  local size, granted = #raw - length, 0
  --[[ charge ]]
  if granted then
    replies[2 * index] = char(granted, #raw)
  else
    replies[2 * index] = pack('>I1I1I4', 0, 255, #raw)
  end
  replies[2 * index + 1] = raw
end
return table.concat(replies)
