#!lua
-- A script consists of this header, the clock, one function per algorithm that returns its meter, and the
-- task. A meter is created on first use: creating its closures is most of the cost of a short call.
--
-- A state is up to four values, passed as arguments and results without a table. A state expires at the time
-- from which on it equals that of a new client. A meter has:
--   terms(text, at)      returns the numbers of a limit and a cost
--   read(raw, at)        returns a state; nil if the bytes are not valid
--   fresh()              returns the state of a new client
--   take(terms, …)       returns the state after the cost was spent; nil if the cost does not fit
--   write(terms, …)      returns the bytes of a state, and when it expires; of the terms it uses only the
--                        window
--   refund(terms, refund_token, …)  returns the state after a charge was refunded, without a refund token
--                        the latest one; nil if nothing was refunded
--   leasing              the functions for leases: sums of token weights, and forced spending
local unpack_from, pack = struct.unpack, struct.pack
