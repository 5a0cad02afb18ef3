//! Servers under test, each a process with its own folder.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use tidegate_testkit::{Port, Process, Redis, wait_for};

use crate::host;

/// A running server. It is stopped by SIGTERM, because a killed NGINX master leaves its workers running.
#[derive(Debug)]
pub struct BenchServer {
    port: u16,
    kind: ServerKind,
    /// The program or Redis that it uses.
    resources: Vec<Self>,
    _reserved_port: Option<Port>,
    _folder: Option<TempDir>,
}

#[derive(Debug)]
enum ServerKind {
    Process(Process),
    Redis(Redis),
}

impl BenchServer {
    /// Starts a server that listens on this port.
    #[must_use]
    pub fn start(command: Command, port: Port, folder: TempDir) -> Self {
        Self::wait_until_listening(Process::spawn(command), port.number(), Some(port), folder)
    }

    /// Starts a server that prints its address in a line with this text.
    ///
    /// # Panics
    /// The line has no address.
    #[must_use]
    pub fn start_and_read_port(command: Command, text: &str, folder: TempDir) -> Self {
        let process = Process::spawn(command);
        let line = process.stdout().find(text);
        let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("no address: {line:?}"));
        Self::wait_until_listening(process, port, None, folder)
    }

    /// Starts `tidegate serve` with one listener, which is the name of its flag: `http`, `grpc`, `resp` or `gateway`.
    ///
    /// # Panics
    /// The files cannot be written.
    #[must_use]
    pub fn tidegate(settings: &TidegateSettings<'_>) -> Self {
        let folder = new_folder();
        let rules = folder.path().join("rules.yaml");
        std::fs::write(&rules, settings.rules).expect("the folder is writable");
        let mut command = host::command(&settings.program, settings.core);
        command.arg("serve").arg("--rules").arg(&rules).env("STATE_DIRECTORY", folder.path());
        for listener in ["http", "grpc", "resp", "admin", "gateway"] {
            let is_wanted = listener == settings.listener;
            command.arg(format!("--{listener}")).arg(if is_wanted { "127.0.0.1:0" } else { "off" });
        }
        command.args(settings.arguments);
        Self::start_and_read_port(command, &format!("{} ", settings.listener), folder)
    }

    /// Starts a Redis.
    ///
    /// # Panics
    /// It does not start.
    #[must_use]
    pub fn redis(redis: Redis, core: Option<usize>) -> Self {
        let server = Self {
            port: redis.port(),
            kind: ServerKind::Redis(redis),
            resources: Vec::new(),
            _reserved_port: None,
            _folder: None,
        };
        if let Some(core) = core {
            assert!(host::pin(server.process_id(), core), "taskset pins Redis");
        }
        server
    }

    /// Keeps another server running as long as this one, and counts its CPU time.
    #[must_use]
    pub fn with_resource(mut self, server: Self) -> Self {
        self.resources.push(server);
        self
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the CPU time that the processes of the server have used so far, in microseconds; not that of its resources.
    #[must_use]
    pub fn cpu_micros(&self) -> f64 {
        host::cpu_micros(self.process_id())
    }

    /// Returns the CPU time of its resources, in microseconds.
    #[must_use]
    pub fn resource_cpu_micros(&self) -> f64 {
        self.resources.iter().map(Self::cpu_micros).sum()
    }

    fn process_id(&self) -> u32 {
        match &self.kind {
            ServerKind::Process(process) => process.id(),
            ServerKind::Redis(redis) => {
                let id = redis.info("process_id").and_then(|id| id.parse().ok());
                id.expect("Redis reports its process")
            }
        }
    }

    fn wait_until_listening(
        process: Process,
        port: u16,
        reserved_port: Option<Port>,
        folder: TempDir,
    ) -> Self {
        wait_for("a server listens", || {
            assert!(process.exited().is_none(), "the server exited:\n{}", process.log_tail());
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        let kind = ServerKind::Process(process);
        Self {
            port,
            kind,
            resources: Vec::new(),
            _reserved_port: reserved_port,
            _folder: Some(folder),
        }
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        if let ServerKind::Process(process) = &self.kind
            && process.exited().is_none()
        {
            process.signal("TERM");
            process.wait();
        }
    }
}

/// Settings of `tidegate serve`.
#[derive(Debug)]
pub struct TidegateSettings<'a> {
    /// The program.
    pub program: PathBuf,
    /// The core, or all of them.
    pub core: Option<usize>,
    /// The only listener.
    pub listener: &'a str,
    /// The document with the rules.
    pub rules: &'a str,
    /// More arguments.
    pub arguments: &'a [String],
}

/// Returns an empty folder that is deleted with its handle.
///
/// # Panics
/// The folder for temporary files is not writable.
#[must_use]
pub fn new_folder() -> TempDir {
    tempfile::tempdir().expect("the folder for temporary files is writable")
}

/// Returns the command of an NGINX with its files in the folder.
///
/// # Panics
/// The configuration cannot be written.
#[must_use]
pub fn nginx_command(
    program: &Path,
    core: Option<usize>,
    folder: &Path,
    workers: usize,
    http: &str,
) -> Command {
    let text = format!(
        "daemon off; worker_processes {workers}; pid {at}/pid; error_log {at}/error.log crit;
         events {{ worker_connections 4096; }}
         http {{
           access_log off; default_type text/plain; keepalive_requests 100000000;
           client_body_temp_path {at}/a; proxy_temp_path {at}/b; fastcgi_temp_path {at}/c;
           uwsgi_temp_path {at}/d; scgi_temp_path {at}/e;
           {http}
         }}",
        at = folder.display(),
    );
    let file = folder.join("nginx.conf");
    std::fs::write(&file, text).expect("the folder is writable");
    let mut command = host::command(program, core);
    command.arg("-e").arg(folder.join("error.log")).arg("-c").arg(file);
    command
}
