#!lua
-- A script is this header, the clock, one function for each algorithm that makes its meter, and what
-- is to be done. A meter is made only when a call needs it: making closures is most of what a short
-- call costs.
--
-- A meter: `terms(text, at)` reads the numbers of a limit and a cost; `read(raw, at)` a state, nil when
-- it can't be read; `fresh()` is the state of a new client; `take(terms, state)` the state after the
-- cost was spent, nil when it does not fit; `write(terms, state)` the bytes of a state and until when
-- they say anything; `refund(terms, state, slip)` the state after a charge was taken back, nil when
-- nothing was.
local unpack_from, pack = struct.unpack, struct.pack
