//! The commands of a document.

use redis::{Cmd, ToRedisArgs};

/// One command on a document's keys.
///
/// Scripts are sent as they are: beside the text of a document they are short.
pub(crate) struct DocumentCommand(Cmd);

/// The beginning of every script that changes a document.
const RETENTION: &str = include_str!("retention.lua");

impl DocumentCommand {
    /// Reads the latest version. Arguments: a known number and its hash.
    pub(crate) fn latest(key: &str) -> Self {
        Self::eval(include_str!("latest.lua"), key)
    }

    /// Reads the metadata of the newest versions. Argument: how many at most.
    pub(crate) fn history(key: &str) -> Self {
        Self::eval(include_str!("history.lua"), key)
    }

    /// Puts a version. Arguments: the expected number, the number to be above, the version and the text.
    pub(crate) fn put(key: &str, kept: (usize, usize)) -> Self {
        let script = [RETENTION, include_str!("put.lua")].concat();
        Self::eval(&script, key).with_retention(key, kept)
    }

    /// Restores a version. Arguments: the number, the time, the version and the text.
    pub(crate) fn restore(key: &str, kept: (usize, usize)) -> Self {
        let script = [RETENTION, include_str!("restore.lua")].concat();
        Self::eval(&script, key).with_retention(key, kept)
    }

    pub(crate) fn version(key: &str, number: u64) -> Self {
        let mut get = redis::cmd("HMGET");
        get.arg(key).arg(format!("v:{number}")).arg(format!("t:{number}"));
        Self(get)
    }

    /// Stores the report of a node. Arguments: the node, the report and its lifetime in microseconds.
    pub(crate) fn report(key: &str) -> Self {
        Self::eval(include_str!("report.lua"), &reports(key))
    }

    pub(crate) fn reports(key: &str) -> Self {
        Self::eval(include_str!("reports.lua"), &reports(key))
    }

    pub(crate) fn argument(mut self, argument: impl ToRedisArgs) -> Self {
        self.0.arg(argument);
        self
    }

    pub(crate) fn command(&self) -> &Cmd {
        &self.0
    }

    fn eval(script: &str, key: &str) -> Self {
        let mut eval = redis::cmd("EVAL");
        eval.arg(script).arg(1).arg(key);
        Self(eval)
    }

    /// Adds the retention limits, and the channel on which the version is published.
    fn with_retention(self, key: &str, (versions, bytes): (usize, usize)) -> Self {
        self.argument(versions).argument(bytes).argument(channel(key))
    }
}

/// Returns the channel on which new versions are published.
pub(crate) fn channel(key: &str) -> &str {
    key
}

/// Returns the Redis key of the reports of nodes, in the slot of the document.
fn reports(key: &str) -> String {
    format!("{key}:reports")
}
