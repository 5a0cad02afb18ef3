//! The scripts, put together from the files beside this one.

use redis::Cmd;
use tidegate_core::{ClientStates, LeaseSet, Quota};

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

/// The scripts that run inside of Redis.
#[derive(Clone)]
pub(crate) struct Scripts {
    pub(crate) charge: Script,
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

/// The server's own time decides.
const CLOCK: &str = include_str!("clock.lua");

impl Scripts {
    pub(crate) fn new() -> Self {
        Self::with_clock(CLOCK)
    }

    /// Returns every script, to be loaded before the first check.
    pub(crate) fn all(&self) -> [&Script; 6] {
        [&self.charge, &self.refund, &self.lease, &self.heartbeat, &self.reset, &self.blocks]
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
