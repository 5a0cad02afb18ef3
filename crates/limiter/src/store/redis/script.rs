//! The scripts, put together from the files beside this one.

use tidegate_core::{ClientStates, Holds, Quota};

/// A script, and the hash that Redis knows it by.
#[derive(Clone)]
pub(super) struct Script {
    pub(super) source: String,
    pub(super) hash: String,
}

impl Script {
    fn new(source: String) -> Self {
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self { source, hash }
    }
}

/// What runs inside of Redis.
#[derive(Clone)]
pub(super) struct Scripts {
    pub(super) charge: Script,
    pub(super) refund: Script,
    pub(super) lease: Script,
    pub(super) pulse: Script,
    pub(super) forget: Script,
    pub(super) blocks: Script,
}

/// Each algorithm by the name of its function, in the order of the ids in their tags.
const ALGORITHMS: [(&str, &str); 6] = [
    ("token_bucket", include_str!("token_bucket.lua")),
    ("leaky_bucket", include_str!("leaky_bucket.lua")),
    ("fixed_window", include_str!("fixed_window.lua")),
    ("sliding_window", include_str!("sliding_window.lua")),
    ("sliding_log", include_str!("sliding_log.lua")),
    ("concurrency", include_str!("concurrency.lua")),
];

/// Where the charge script takes in what it does with requests of several charges.
const SEVERAL: &str = "--[[ several.lua ]]\n";

/// The server's own time decides.
const CLOCK: &str = include_str!("clock.lua");

impl Scripts {
    pub(super) fn new() -> Self {
        Self::with_clock(CLOCK)
    }

    /// Every script, to be loaded before the first check.
    pub(super) fn all(&self) -> [&Script; 6] {
        [&self.charge, &self.refund, &self.lease, &self.pulse, &self.forget, &self.blocks]
    }

    /// The scripts on another clock, for tests that move time by hand.
    pub(super) fn with_clock(clock: &str) -> Self {
        // What a script does not need of the meters is not made.
        let compose = |needs: &str, task: &str| {
            let mut source = String::from(include_str!("header.lua"));
            source.push_str(needs);
            source.push_str(clock);
            for (name, meter) in ALGORITHMS {
                source.push_str(&format!("local function {name}()\n{meter}end\n"));
            }
            source.push_str(&format!("local MAX_LIMITS = {}\n", ClientStates::MAX_LIMITS));
            source.push_str(include_str!("sections.lua"));
            source.push_str(task);
            Script::new(source)
        };
        let several = format!("local function several()\n{}end\n", include_str!("several.lua"));
        let charge = include_str!("charge.lua").replace(SEVERAL, &several);
        let leases = format!(
            "local REFUNDS, LEASES, MOST, LARGEST, LONGEST_DEBT = false, true, {}, {}, {}\n",
            Holds::MOST,
            Quota::MAX_AMOUNT,
            Quota::MAX_FILL.as_micros()
        );
        Self {
            charge: compose("local REFUNDS, LEASES = false, false\n", &charge),
            refund: compose("local REFUNDS, LEASES = true, false\n", include_str!("refund.lua")),
            lease: compose(&leases, include_str!("lease.lua")),
            pulse: Script::new(include_str!("pulse.lua").to_owned()),
            forget: Script::new(include_str!("forget.lua").to_owned()),
            blocks: Script::new(include_str!("blocks.lua").to_owned()),
        }
    }
}

impl std::fmt::Debug for Scripts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scripts").field("charge", &self.charge.hash).finish_non_exhaustive()
    }
}
