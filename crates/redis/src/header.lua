#!lua
-- A script is this header, the clock, one function for each algorithm that makes its meter, and what
-- is to be done. A meter is made only when a call needs it: making closures is most of what a short
-- call costs.
--
-- A state is up to four values, passed around without a table. A meter has:
--   terms(text, at)      the numbers of a limit and a cost
--   read(raw, at)        a state; nothing when it can't be read
--   fresh()              the state of a new client
--   take(terms, …)       the state after the cost was spent; nothing when it does not fit
--   write(terms, …)      the bytes of a state, and until when they say anything; of the terms it needs
--                        only the window
--   refund(terms, refund token, …)  the state after a charge was taken back, the last one when there is no
--                        refund token; nothing when none was
--   leasing              what holds need of it: sums of what tokens take, and spending that is owed
local unpack_from, pack = struct.unpack, struct.pack
