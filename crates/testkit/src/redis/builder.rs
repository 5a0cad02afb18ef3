//! The configuration of a Redis server.

use std::fs;
use std::process::Command;
use std::sync::Mutex;

use super::{ATTEMPTS, CLOCK_FILE, Redis};
use crate::certificates::Certificates;
use crate::port::Port;
use crate::process::Process;
use crate::skew;
use crate::tool::{Flavour, Tool};

/// A server before it starts.
#[derive(Debug, Clone, Default)]
pub struct RedisBuilder {
    flavour: Flavour,
    config: Vec<(String, String)>,
    pub(crate) tls: bool,
    pub(crate) password: Option<String>,
    clock: Option<i64>,
    pub(crate) movable_clock: bool,
    sentinel: bool,
}

impl RedisBuilder {
    /// Sets the server program; Redis by default.
    #[must_use]
    pub fn flavour(mut self, flavour: Flavour) -> Self {
        self.flavour = flavour;
        self
    }

    /// Creates a line of `redis.conf`: `config("maxmemory", "10mb")`. A value may be several words.
    #[must_use]
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.config.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Enables TLS, and only TLS, on its port; clients trust [`Redis::ca`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Requires this password of letters and digits, which becomes part of its URLs.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Offsets its wall clock by this many seconds, forward or back. Its monotonic clock is unchanged.
    ///
    /// Needs [`Tool::Faketime`].
    #[must_use]
    pub fn clock(mut self, offset_seconds: i64) -> Self {
        self.clock = Some(offset_seconds);
        self
    }

    /// Gives it a wall clock that [`Redis::set_clock`] moves at run time. Its monotonic clock is unchanged.
    ///
    /// Needs [`Tool::Faketime`].
    #[must_use]
    pub fn movable_clock(mut self) -> Self {
        self.movable_clock = true;
        self
    }

    /// Runs as a sentinel without a monitored master.
    #[must_use]
    pub(crate) fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Panics
    /// The server is missing or does not start.
    pub fn start(self) -> Redis {
        let mut said = String::new();
        // Another process may take the port between the check and the start.
        for _ in 0..ATTEMPTS {
            let folder = tempfile::Builder::new().prefix("tidegate-").tempdir();
            let folder = folder.expect("a temporary folder can be made");
            if self.tls {
                Certificates::create(folder.path());
            }
            if self.sentinel {
                fs::write(folder.path().join("sentinel.conf"), "").expect("the folder is ours");
            }
            if self.movable_clock {
                skew::write(&folder.path().join(CLOCK_FILE), 0);
            }
            let redis = Redis {
                settings: self.clone(),
                port: Port::free(),
                folder,
                process: Mutex::new(None),
            };
            match redis.launch() {
                Ok(()) => return redis,
                Err(log) => said = log,
            }
        }
        panic!("{} ended {ATTEMPTS} times at its start:\n{said}", Tool::Server(self.flavour));
    }

    pub(crate) fn command(&self, redis: &Redis) -> Command {
        let folder = redis.folder();
        let mut command = Process::command(Tool::Server(self.flavour).expect_path());
        command.current_dir(folder);
        if self.sentinel {
            // A sentinel writes its state to its configuration file.
            command.args(["sentinel.conf", "--sentinel"]);
        } else {
            command.args(["--save", "", "--appendonly", "no"]);
            // Replicas get their data at once; by default a master waits some seconds for more replicas.
            command.args(["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"]);
        }
        command.arg("--dir").arg(folder).args(["--bind", "127.0.0.1"]);
        command.arg("--unixsocket").arg(redis.socket());
        let port = redis.port().to_string();
        if self.tls {
            command.args(["--port", "0", "--tls-port", &port, "--tls-auth-clients", "no"]);
            command.arg("--tls-ca-cert-file").arg(redis.ca());
            command.arg("--tls-cert-file").arg(folder.join("server.pem"));
            command.arg("--tls-key-file").arg(folder.join("server.key"));
        } else {
            command.args(["--port", &port]);
        }
        if let Some(password) = &self.password {
            command.args(["--requirepass", password]);
        }
        for (name, value) in &self.config {
            command.arg(format!("--{name}")).args(value.split(' '));
        }
        if let Some(offset) = self.clock {
            Process::skew(&mut command, offset);
        }
        if self.movable_clock {
            skew::follow(&mut command, &folder.join(CLOCK_FILE));
        }
        command
    }
}
