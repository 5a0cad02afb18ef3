//! The servers that are measured, each a process of its own on the first core.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tidegate_testkit::{Port, Redis};

/// Where peers are that no Debian package has.
const PEERS: &str = ".cache/tidegate-tools/throttlecrab/bin";

/// A running server.
pub(crate) struct Server {
    pub(crate) port: u16,
    process: u32,
    _running: Running,
}

/// What has to stay for the server to stay.
#[expect(dead_code, reason = "kept for its end")]
enum Running {
    Child(Child, Option<Port>),
    Redis(Redis),
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Running::Child(child, _) = &mut self._running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Server {
    pub(crate) fn empty(listener: &str) -> Option<Self> {
        let mut child = pinned(beside("empty")).args([listener, "127.0.0.1:0"]).spawn().unwrap();
        let port = port_in(&first_line(&mut child));
        Some(Self::of(child, port, None))
    }

    pub(crate) fn tidegate(listener: &str) -> Option<Self> {
        Self::tidegate_at(beside("tidegate"), listener)
    }

    /// An earlier build of Tidegate, if `TIDEGATE_BEFORE` has its path.
    pub(crate) fn tidegate_before(listener: &str) -> Option<Self> {
        Self::tidegate_at(PathBuf::from(std::env::var_os("TIDEGATE_BEFORE")?), listener)
    }

    fn tidegate_at(program: PathBuf, listener: &str) -> Option<Self> {
        let rules = scratch(
            "rules.yaml",
            "rules: [{name: api, per: ['user | api_key'], limit: 1000000 per second}]",
        );
        let mut command = pinned(program);
        command.args(["serve", "--rules", rules.to_str().unwrap()]);
        for other in ["http", "grpc", "resp"] {
            command.args([
                format!("--{other}").as_str(),
                if other == listener { "127.0.0.1:0" } else { "off" },
            ]);
        }
        let mut child = command.args(["--admin", "off"]).spawn().unwrap();
        let port = port_in(&first_line(&mut child));
        Some(Self::of(child, port, None))
    }

    pub(crate) fn throttlecrab(listener: &str) -> Option<Self> {
        let home = PathBuf::from(std::env::var_os("HOME")?);
        let program = home.join(PEERS).join("throttlecrab-server");
        if !program.exists() {
            eprintln!("no throttlecrab-server, going on without it");
            return None;
        }
        let port = Port::free();
        let mut command = pinned(program);
        command.args([&format!("--{listener}"), &format!("--{listener}-host"), "127.0.0.1"]);
        command.args([&format!("--{listener}-port"), &port.number().to_string()]);
        command.args(["--store", "periodic", "--log-level", "error"]);
        Some(Self::of(command.spawn().unwrap(), port.number(), Some(port)))
    }

    pub(crate) fn nginx() -> Option<Self> {
        let port = Port::free();
        let folder = std::env::temp_dir().join(format!("tidegate-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let text = format!(
            "daemon off; worker_processes 1; pid {0}/pid; error_log {0}/error.log crit;
             events {{ worker_connections 4096; }}
             http {{
               access_log off; keepalive_requests 100000000;
               client_body_temp_path {0}/a; proxy_temp_path {0}/b; fastcgi_temp_path {0}/c;
               uwsgi_temp_path {0}/d; scgi_temp_path {0}/e;
               limit_req_zone $arg_user zone=api:64m rate=1000000r/s;
               server {{ listen 127.0.0.1:{1}; location / {{ limit_req zone=api burst=1000000 nodelay; empty_gif; }} }}
             }}",
            folder.display(),
            port.number()
        );
        let file = scratch("nginx.conf", &text);
        let mut command = pinned("nginx".into());
        let Ok(child) = command.args(["-c", file.to_str().unwrap()]).spawn() else {
            eprintln!("no nginx, going on without it");
            return None;
        };
        Some(Self::of(child, port.number(), Some(port)))
    }

    pub(crate) fn redis() -> Option<Self> {
        let redis = Redis::start();
        let process = redis.info("process_id").unwrap().parse().unwrap();
        pin(process);
        let port = redis.port();
        redis.query::<()>(&["SET", "key:000000000001", "value"]);
        Some(Self { port, process, _running: Running::Redis(redis) })
    }

    fn of(child: Child, port: u16, kept: Option<Port>) -> Self {
        let server = Self { port, process: child.id(), _running: Running::Child(child, kept) };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(20), "nobody listens on {port}");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// CPU time that it and its children have used so far, in microseconds.
    pub(crate) fn cpu_micros(&self) -> f64 {
        let children = Command::new("pgrep").args(["-P", &self.process.to_string()]).output();
        let children = children.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
        let children = children.unwrap_or_default();
        let all =
            std::iter::once(self.process.to_string()).chain(children.lines().map(str::to_owned));
        // In hundredths of a second, the 14th and 15th field; the second is a name in parentheses.
        let ticks = all.filter_map(|process| {
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
            let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
            Some(fields[11].parse::<f64>().ok()? + fields[12].parse::<f64>().ok()?)
        });
        ticks.sum::<f64>() * 10_000.0
    }
}

/// A program beside this one.
fn beside(name: &str) -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name(name);
    assert!(path.exists(), "no {}; make bench-listeners builds it", path.display());
    path
}

fn pinned(program: PathBuf) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(program).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

fn pin(process: u32) {
    let _ = Command::new("taskset").args(["-a", "-p", "-c", "0", &process.to_string()]).output();
}

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    line
}

fn port_in(line: &str) -> u16 {
    let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok());
    port.unwrap_or_else(|| panic!("no address: {line:?}"))
}

fn scratch(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tidegate-bench-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}
