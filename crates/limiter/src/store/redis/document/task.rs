//! What a document asks of Redis: one command each.

use redis::{Cmd, ToRedisArgs};

/// One command on a document's keys.
///
/// Scripts are sent as they are: beside the text of a document they are short.
pub(super) struct Task(Cmd);

/// What comes first in every script that changes a document.
const KEEPING: &str = include_str!("keeping.lua");

impl Task {
    /// To be told a known number and its hash.
    pub(super) fn latest(key: &str) -> Self {
        Self::eval(include_str!("latest.lua"), key)
    }

    /// To be told how many at most.
    pub(super) fn history(key: &str) -> Self {
        Self::eval(include_str!("history.lua"), key)
    }

    /// To be told the expected number, the one to be above, the version and the text.
    pub(super) fn put(key: &str, kept: (usize, usize)) -> Self {
        let script = [KEEPING, include_str!("put.lua")].concat();
        Self::eval(&script, key).keeping(key, kept)
    }

    /// To be told the number, the instant, the version and the text.
    pub(super) fn restore(key: &str, kept: (usize, usize)) -> Self {
        let script = [KEEPING, include_str!("restore.lua")].concat();
        Self::eval(&script, key).keeping(key, kept)
    }

    pub(super) fn edition(key: &str, number: u64) -> Self {
        let mut get = redis::cmd("HMGET");
        get.arg(key).arg(format!("v:{number}")).arg(format!("t:{number}"));
        Self(get)
    }

    /// To be told the node, its words and for how many microseconds they count.
    pub(super) fn report(key: &str) -> Self {
        Self::eval(include_str!("report.lua"), &reports(key))
    }

    pub(super) fn reports(key: &str) -> Self {
        Self::eval(include_str!("reports.lua"), &reports(key))
    }

    pub(super) fn argument(mut self, argument: impl ToRedisArgs) -> Self {
        self.0.arg(argument);
        self
    }

    pub(super) fn command(&self) -> &Cmd {
        &self.0
    }

    fn eval(script: &str, key: &str) -> Self {
        let mut eval = redis::cmd("EVAL");
        eval.arg(script).arg(1).arg(key);
        Self(eval)
    }

    /// How much is kept, and who is told.
    fn keeping(self, key: &str, (versions, bytes): (usize, usize)) -> Self {
        self.argument(versions).argument(bytes).argument(channel(key))
    }
}

/// Where it is published that there is a new version.
pub(super) fn channel(key: &str) -> &str {
    key
}

/// Where nodes say how they are: in the slot of the document.
fn reports(key: &str) -> String {
    format!("{key}:reports")
}
