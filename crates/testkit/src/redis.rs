//! One Redis server.

mod builder;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{FromRedisValue, RedisError};
use tempfile::TempDir;

use crate::port::Port;
use crate::process::Process;
use crate::skew;
use crate::tool::{Flavour, Tool};
use crate::wait::{poll, wait_for};

pub use builder::RedisBuilder;

/// Maximum number of attempts to start a server.
const ATTEMPTS: usize = 5;

/// Timeout of a query by the test kit.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// The file with the offset of a movable clock.
const CLOCK_FILE: &str = "clock";

/// Microseconds by which two readings of one clock may differ: libfaketime adds fractions of a second as a float.
const CLOCK_TOLERANCE: i128 = 10;

/// One server with its own port and folder, without persistence.
///
/// It also listens on a unix socket, which the test kit uses for its own queries: they always reach this server, also
/// when a proxy or another process uses its port.
#[derive(Debug)]
pub struct Redis {
    settings: RedisBuilder,
    port: Port,
    folder: TempDir,
    process: Mutex<Option<Process>>,
}

impl Redis {
    /// Creates a Redis with nothing special about it, ready to answer.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns a server to be described before it starts.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::default()
    }

    /// Returns whether this machine has a server of this flavour.
    pub fn available(flavour: Flavour) -> bool {
        Tool::Server(flavour).path().is_some()
    }

    /// Returns the port that it listens on, with TLS if that is enabled.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns `127.0.0.1:port`
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// Returns `redis://…`, or `rediss://…` for a server with TLS; with the password if there is one.
    pub fn url(&self) -> String {
        let scheme = if self.settings.tls { "rediss" } else { "redis" };
        let login = self.settings.password.as_ref().map(|password| format!(":{password}@"));
        format!("{scheme}://{}{}", login.unwrap_or_default(), self.address())
    }

    /// Returns `redis+unix://…`, with the password if there is one.
    pub fn unix_url(&self) -> String {
        let login = self.settings.password.as_ref().map(|password| format!("?pass={password}"));
        format!("redis+unix://{}{}", self.socket().display(), login.unwrap_or_default())
    }

    /// Returns the path of its unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// Returns the certificate that clients of a server with TLS must trust.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Returns a connection of the caller's own, through the unix socket. Its calls have no timeout: Linux interrupts a call
    /// with a timeout when the process is stopped and continued, and the connection would be lost.
    ///
    /// # Errors
    /// The server does not reply.
    pub fn connection(&self) -> Result<redis::Connection, RedisError> {
        redis::Client::open(self.unix_url())?.get_connection_with_timeout(QUERY_TIMEOUT)
    }

    /// Returns the answer to a command. An interrupted command is repeated.
    ///
    /// # Errors
    /// The error reply, or the missing reply.
    pub fn try_query<T: FromRedisValue>(&self, command: &[&str]) -> Result<T, RedisError> {
        let (name, arguments) = command.split_first().expect("a command has a name");
        loop {
            let result = self.connection().and_then(|mut connection| {
                connection.set_read_timeout(Some(QUERY_TIMEOUT))?;
                redis::cmd(name).arg(arguments).query(&mut connection)
            });
            match result {
                Err(error) if is_interrupted(&error) => {}
                result => return result,
            }
        }
    }

    /// Returns the answer to a command.
    ///
    /// # Panics
    /// There is no reply, or it is an error or not a `T`.
    pub fn query<T: FromRedisValue>(&self, command: &[&str]) -> T {
        let answer = self.try_query(command);
        answer.unwrap_or_else(|error| panic!("redis {}: {command:?}: {error}", self.address()))
    }

    /// Returns a field of `INFO`, if it has it.
    pub fn info(&self, field: &str) -> Option<String> {
        let info: String = self.try_query(&["INFO", "everything"]).ok()?;
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(name, _)| *name == field).map(|(_, value)| value.to_owned())
    }

    /// Returns its own clock: microseconds since 1970.
    pub fn time_micros(&self) -> u64 {
        let (seconds, micros): (u64, u64) = self.query(&["TIME"]);
        seconds * 1_000_000 + micros
    }

    /// Sets its wall clock off by so many milliseconds from the machine's, and returns once its `TIME` shows that. A restart
    /// keeps the offset.
    ///
    /// # Panics
    /// The server does not run, or was built without [`RedisBuilder::movable_clock`].
    pub fn set_clock(&self, offset_millis: i64) {
        assert!(self.settings.movable_clock, "a server built with a movable clock");
        skew::write(&self.folder.path().join(CLOCK_FILE), offset_millis);
        // A server may answer by a time that it read before.
        wait_for("the server's clock is set", || {
            let wanted = i128::from(offset_millis) * 1_000;
            let before = wall_micros() + wanted - CLOCK_TOLERANCE;
            let shown = i128::from(self.time_micros());
            (before..=wall_micros() + wanted + CLOCK_TOLERANCE).contains(&shown).then_some(())
        });
    }

    /// Kills it (`SIGKILL`) and returns after its end. Its port stays reserved.
    pub fn kill(&self) {
        // Dropping the process kills it.
        drop(self.process().take());
    }

    /// Stops it (`SIGSTOP`): connections stay open without replies.
    ///
    /// # Panics
    /// The server does not run.
    pub fn pause(&self) {
        self.process().as_ref().expect("a running server can be paused").pause();
    }

    /// Continues after [`pause`](Self::pause).
    ///
    /// # Panics
    /// The server does not run.
    pub fn resume(&self) {
        self.process().as_ref().expect("a paused server can go on").resume();
    }

    /// Starts it again on the same port, without its data; kills it first if it runs.
    ///
    /// Changes by `CONFIG SET` are lost. A cluster node keeps its role in the cluster.
    ///
    /// # Panics
    /// The server does not start.
    pub fn restart(&self) {
        if let Err(log) = self.launch() {
            panic!("redis {} does not start again:\n{log}", self.address());
        }
    }

    /// Returns whether it runs and is not paused.
    pub fn is_up(&self) -> bool {
        let process = self.process();
        process.as_ref().is_some_and(|process| process.exited().is_none() && !process.is_paused())
    }

    /// Returns the last lines of its log.
    pub fn log_tail(&self) -> String {
        self.process().as_ref().map(Process::log_tail).unwrap_or_default()
    }

    /// Returns its folder, where it keeps its socket, its certificates and a cluster node its `nodes.conf`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts the process and waits until it answers. If it ended, the error contains its output.
    fn launch(&self) -> Result<(), String> {
        self.kill();
        let process = Process::spawn(self.settings.command(self));
        let ended = poll(|| match process.exited() {
            Some(_) => Some(true),
            None => self.try_query::<String>(&["PING"]).is_ok().then_some(false),
        });
        match ended {
            Some(false) => {
                *self.process() = Some(process);
                Ok(())
            }
            Some(true) => Err(process.log_tail()),
            None => panic!("redis {} does not answer:\n{}", self.address(), process.log_tail()),
        }
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a signal has interrupted a call of the socket.
fn is_interrupted(error: &RedisError) -> bool {
    // RedisError has no accessor for the kind of an I/O error.
    error.is_io_error() && error.to_string().contains("Interrupted system call")
}

/// The machine's wall clock, which servers read.
#[allow(
    clippy::disallowed_methods,
    reason = "the clock of a server is compared with the machine's"
)]
fn wall_micros() -> i128 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    i128::try_from(passed.as_micros()).expect("a wall clock of our times")
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}
