//! What the kit needs from the machine, and where it is.

use std::env;
use std::fmt;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::thread;

/// The server program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flavour {
    /// The `redis-server` on the path: Redis 7 or later.
    #[default]
    Redis,
    /// A `valkey-server`, from the path or fetched by `tools/setup.sh`.
    Valkey,
    /// A Redis 6, fetched by `tools/setup.sh`: older than what Tidegate accepts.
    Redis6,
}

/// Something a test can't do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// A server of this flavour.
    Server(Flavour),
    /// The library of the Debian package `faketime`, for servers with a clock of their own.
    Faketime,
    /// The `openssl` command, for certificates.
    Openssl,
    /// The `promtool` command of the Debian package `prometheus`, which checks metrics and alerts.
    Promtool,
    /// The `redis-cli` command.
    RedisCli,
    /// The `redis-benchmark` command.
    RedisBenchmark,
    /// The `python3` command.
    Python,
    /// The Python package `redis`, in the folder that this names, with a `python3` to run it.
    RedisPy,
    /// The Node package `ioredis`, in the folder that this names, with a `node` to run it.
    Ioredis,
    /// The Python package `websockets`, in the folder that this names, with a `python3` to run it.
    Websockets,
    /// The Python packages `flask` and `django`, in the folder that this names, with a `python3` to run them.
    PythonWeb,
    /// The Node package `express`, in the folder that this names, with a `node` to run it.
    Express,
    /// The Node package `axe-core`, in the folder that this names; a browser runs it.
    Axe,
    /// The `setpriv` command of util-linux, without which a server outlives a test runner that is killed.
    Setpriv,
    /// Envoy, from the path or fetched by `tools/setup.sh`.
    Envoy,
    /// A Python with Envoy's messages and gRPC, fetched by `tools/setup.sh`.
    PythonEnvoy,
    /// NGINX with `auth_request`, as Debian has it.
    Nginx,
    /// Caddy, from the path or fetched by `tools/setup.sh`.
    Caddy,
    /// Traefik, from the path or fetched by `tools/setup.sh`.
    Traefik,
    /// The `tmux` command, for terminals.
    Tmux,
    /// The browser of the Debian package `chromium`.
    Chromium,
    /// The `chromedriver` command of the Debian package `chromium-driver`.
    Chromedriver,
}

impl Tool {
    /// Returns its path, if it is installed.
    pub fn path(self) -> Option<PathBuf> {
        match self {
            Self::Server(Flavour::Redis) => on_path("redis-server"),
            Self::Server(Flavour::Valkey) => {
                on_path("valkey-server").or_else(|| fetched("valkey-server"))
            }
            Self::Server(Flavour::Redis6) => fetched("redis6-server"),
            Self::Faketime => faketime_library(),
            Self::Openssl => on_path("openssl"),
            Self::Promtool => on_path("promtool"),
            Self::RedisCli => on_path("redis-cli"),
            Self::RedisBenchmark => on_path("redis-benchmark"),
            Self::Python => on_path("python3"),
            Self::RedisPy => on_path("python3").and_then(|_| library("redis-py")),
            Self::Ioredis => on_path("node").and_then(|_| library("ioredis")),
            Self::Websockets => on_path("python3").and_then(|_| library("websockets")),
            Self::PythonWeb => on_path("python3").and_then(|_| library("python-web")),
            Self::Express => on_path("node").and_then(|_| library("express")),
            Self::Axe => library("axe"),
            Self::Setpriv => SETPRIV.clone(),
            Self::Envoy => on_path("envoy").or_else(|| fetched("envoy")),
            Self::PythonEnvoy => fetched("python-envoy"),
            // The folder that Debian uses is not always in PATH.
            Self::Nginx => on_path("nginx").or_else(|| {
                Some("/usr/sbin/nginx".into()).filter(|nginx: &PathBuf| nginx.is_file())
            }),
            Self::Caddy => on_path("caddy").or_else(|| fetched("caddy")),
            Self::Traefik => on_path("traefik").or_else(|| fetched("traefik")),
            Self::Tmux => on_path("tmux"),
            Self::Chromium => on_path("chromium"),
            Self::Chromedriver => on_path("chromedriver"),
        }
    }

    /// Returns its path.
    ///
    /// # Panics
    /// The tool is missing.
    pub(crate) fn expect_path(self) -> PathBuf {
        self.path().unwrap_or_else(|| panic!("no {self} found; tools/setup.sh installs it"))
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server(Flavour::Redis) => "redis-server",
            Self::Server(Flavour::Valkey) => "valkey-server",
            Self::Server(Flavour::Redis6) => "Redis 6",
            Self::Faketime => "libfaketime",
            Self::Openssl => "openssl",
            Self::Promtool => "promtool",
            Self::RedisCli => "redis-cli",
            Self::RedisBenchmark => "redis-benchmark",
            Self::Python => "python3",
            Self::RedisPy => "redis-py",
            Self::Ioredis => "ioredis",
            Self::Websockets => "websockets",
            Self::PythonWeb => "Flask and Django",
            Self::Express => "express",
            Self::Axe => "axe-core",
            Self::Setpriv => "setpriv",
            Self::Envoy => "envoy",
            Self::PythonEnvoy => "Python with Envoy's messages",
            Self::Nginx => "nginx",
            Self::Caddy => "caddy",
            Self::Traefik => "traefik",
            Self::Tmux => "tmux",
            Self::Chromium => "chromium",
            Self::Chromedriver => "chromedriver",
        })
    }
}

/// Returns whether a tool is missing. If so, the test is skipped: that is printed, and added to the file that the
/// environment variable `TIDEGATE_SKIP_LOG` names, because the output of a test that passes is not shown.
///
/// ```
/// # use tidegate_testkit::{Flavour, Tool, lacking};
/// if lacking(&[Tool::Server(Flavour::Valkey)]) {
///     return;
/// }
/// ```
#[allow(clippy::print_stderr, reason = "a run without the log still shows what was not tested")]
pub fn lacking(tools: &[Tool]) -> bool {
    let Some(tool) = tools.iter().find(|tool| tool.path().is_none()) else { return false };
    let current = thread::current();
    let test = current.name().unwrap_or("a test");
    let line = format!("{test}: no {tool} found; tools/setup.sh installs it\n");
    eprint!("skipped: {line}");
    if let Some(path) = env::var_os("TIDEGATE_SKIP_LOG") {
        let log = fs::OpenOptions::new().append(true).create(true).open(&path);
        let written = log.and_then(|mut log| log.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    true
}

static SETPRIV: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let found = on_path("setpriv")?;
    // Not every setpriv knows the option.
    let mut trial = Command::new(&found);
    trial.args(["--pdeathsig", "KILL", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
    trial.status().is_ok_and(|status| status.success()).then_some(found)
});

fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Returns the folder in which `tools/setup.sh` installs programs without a Debian package.
fn fetched(name: &str) -> Option<PathBuf> {
    let file = env::home_dir()?.join(".cache/tidegate-tools/bin").join(name);
    file.is_file().then_some(file)
}

/// Returns the folder in which `tools/setup.sh` installs packages of other languages.
fn library(name: &str) -> Option<PathBuf> {
    let folder = env::home_dir()?.join(".cache/tidegate-tools/lib").join(name);
    folder.is_dir().then_some(folder)
}

/// Returns the library. On Debian its folder is named after the architecture.
fn faketime_library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten();
    let mut files = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    files.find(|file| file.is_file())
}
