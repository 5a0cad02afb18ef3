//! The scripts, put together from the files beside this one.

use redis::Cmd;
use tidegate_core::{ClientStates, LeaseSet, Limit, Quota};

/// A script and its hash.
#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) source: String,
    pub(crate) hash: String,
}

impl Script {
    fn new(source: String) -> Self {
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self { source, hash }
    }
}

/// One call of a script.
#[derive(Clone, Copy)]
pub(crate) struct ScriptCall<'a> {
    pub(crate) script: &'a Script,
    pub(crate) keys: &'a [String],
    pub(crate) arguments: &'a [Vec<u8>],
}

impl ScriptCall<'_> {
    /// Returns the command that names the script by its hash.
    pub(crate) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.script.hash)
    }

    /// Returns the command that contains the source of the script.
    pub(crate) fn by_source(&self) -> Cmd {
        self.command("EVAL", &self.script.source)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len()).arg(self.keys).arg(self.arguments);
        command
    }
}

/// The scripts that charge different keys under one limit, each once.
#[derive(Clone)]
struct UniformScripts {
    /// Charges one key.
    one: Script,
    batch: Script,
}

/// The scripts that run inside of Redis.
#[derive(Clone)]
pub(crate) struct Scripts {
    /// Charges any batch.
    pub(crate) charge: Script,
    uniform_buckets: UniformScripts,
    uniform_fixed_windows: UniformScripts,
    uniform_sliding_windows: UniformScripts,
    pub(crate) refund: Script,
    pub(crate) lease: Script,
    pub(crate) heartbeat: Script,
    pub(crate) reset: Script,
    pub(crate) blocks: Script,
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

/// The place in the charge script for the part that handles requests of several charges.
const MULTI_CHARGE: &str = "--[[ multi_charge.lua ]]\n";

/// The places in the uniform scripts for the two parts of an algorithm, which this line separates as well.
const UNIFORM_TERMS: &str = "--[[ terms ]]\n";
const UNIFORM_CHARGE: &str = "--[[ charge ]]\n";

/// Products of an amount and a window below this are exact in Lua.
const MAX_EXACT_PRODUCT: u64 = 1 << 53;

/// The server's own time decides.
const CLOCK: &str = include_str!("clock.lua");

impl Scripts {
    pub(crate) fn new() -> Self {
        Self::with_clock(CLOCK)
    }

    /// Returns every script, to be loaded before the first check.
    pub(crate) fn all(&self) -> [&Script; 12] {
        let [buckets, fixed, sliding] =
            [&self.uniform_buckets, &self.uniform_fixed_windows, &self.uniform_sliding_windows];
        [
            &self.charge,
            &buckets.one,
            &buckets.batch,
            &fixed.one,
            &fixed.batch,
            &sliding.one,
            &sliding.batch,
            &self.refund,
            &self.lease,
            &self.heartbeat,
            &self.reset,
            &self.blocks,
        ]
    }

    /// Returns the script that charges `keys` different keys once, by the same cost. `None` if only the general
    /// script can charge this limit.
    pub(crate) fn uniform(&self, limit: &Limit, keys: usize) -> Option<&Script> {
        let scripts = match limit {
            Limit::TokenBucket(_) | Limit::LeakyBucket(_) => &self.uniform_buckets,
            Limit::FixedWindow(_) => &self.uniform_fixed_windows,
            Limit::SlidingWindow(_) => {
                let (amount, window) = (limit.quota().amount(), limit.quota().window());
                amount.checked_mul(window.as_micros()).filter(|most| *most < MAX_EXACT_PRODUCT)?;
                &self.uniform_sliding_windows
            }
            Limit::SlidingLog(_) | Limit::Concurrency(_) => return None,
        };
        Some(if keys == 1 { &scripts.one } else { &scripts.batch })
    }

    /// The scripts on another clock, for tests that move time by hand.
    pub(crate) fn with_clock(clock: &str) -> Self {
        // Parts of the algorithms that a script does not need are left out.
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
        let uniform = |algorithm: &str| {
            let (terms, charge) = algorithm.split_once(UNIFORM_CHARGE).unwrap_or_default();
            let compose = |task: &str| {
                let task = task.replace(UNIFORM_TERMS, terms).replace(UNIFORM_CHARGE, charge);
                Script::new([include_str!("header.lua"), clock, &task].concat())
            };
            UniformScripts {
                one: compose(include_str!("uniform_one.lua")),
                batch: compose(include_str!("uniform_batch.lua")),
            }
        };
        let multi = include_str!("multi_charge.lua");
        let multi = format!("local function multi_charge()\n{multi}end\n");
        let charge = include_str!("charge.lua").replace(MULTI_CHARGE, &multi);
        let leases = format!(
            "local REFUNDS, LEASES, MAX_LEASES, MAX_AMOUNT, MAX_DEBT = false, true, {}, {}, {}\n",
            LeaseSet::MAX_LEASES,
            Quota::MAX_AMOUNT,
            Quota::MAX_FILL.as_micros()
        );
        Self {
            charge: compose("local REFUNDS, LEASES = false, false\n", &charge),
            uniform_buckets: uniform(include_str!("uniform_bucket.lua")),
            uniform_fixed_windows: uniform(include_str!("uniform_fixed_window.lua")),
            uniform_sliding_windows: uniform(include_str!("uniform_sliding_window.lua")),
            refund: compose("local REFUNDS, LEASES = true, false\n", include_str!("refund.lua")),
            lease: compose(&leases, include_str!("lease.lua")),
            heartbeat: Script::new(include_str!("heartbeat.lua").to_owned()),
            reset: Script::new(include_str!("reset.lua").to_owned()),
            blocks: Script::new(include_str!("blocks.lua").to_owned()),
        }
    }
}

impl std::fmt::Debug for Scripts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scripts").field("charge", &self.charge.hash).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, Span};

    use super::*;

    #[test]
    fn uniform_scripts_decide_only_what_is_exact_in_them() {
        let scripts = Scripts::new();
        let decides =
            |algorithm, quota| scripts.uniform(&Limit::new(algorithm, quota).unwrap(), 2).is_some();
        for algorithm in [
            Algorithm::TokenBucket,
            Algorithm::LeakyBucket { queue: 3 },
            Algorithm::FixedWindow,
            Algorithm::SlidingWindow,
        ] {
            assert!(decides(algorithm, Quota::per_minute(1_000)), "{algorithm:?}");
        }
        let sliding = |amount| {
            decides(Algorithm::SlidingWindow, Quota::per(amount, Span::from_micros(1 << 20)))
        };
        assert!(sliding((1 << 33) - 1));
        assert!(!sliding(1 << 33), "the product of amount and window is 2^53");
        assert!(!decides(Algorithm::SlidingLog, Quota::per_minute(10)));
        assert!(!decides(Algorithm::Concurrency { hold: Span::MINUTE }, Quota::in_flight(10)));
    }

    #[test]
    fn every_part_of_a_uniform_script_is_inserted() {
        for script in Scripts::new().all() {
            assert!(!script.source.contains("--[["), "{}", script.source);
        }
    }
}
