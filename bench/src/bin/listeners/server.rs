//! The servers under test, each a process on the first core.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tidegate_testkit::{Port, Redis};

/// Folder of throttlecrab-server below the home directory. No Debian package has it.
const THROTTLECRAB_FOLDER: &str = ".cache/tidegate-tools/throttlecrab/bin";

/// A running server.
pub(crate) struct Server {
    pub(crate) port: u16,
    process: u32,
    _resource: ServerResource,
}

/// Resources that must live as long as the server.
#[expect(dead_code, reason = "dropping it ends the server")]
enum ServerResource {
    Child(Child, Option<Port>),
    Redis(Redis),
}

impl Drop for Server {
    fn drop(&mut self) {
        if let ServerResource::Child(child, _) = &mut self._resource {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Server {
    pub(crate) fn empty(listener: &str) -> Option<Self> {
        let mut child = pinned_command(sibling_binary("empty"))
            .args([listener, "127.0.0.1:0"])
            .spawn()
            .unwrap();
        let port = parse_port(&first_line(&mut child));
        Some(Self::wait_until_listening(child, port, None))
    }

    pub(crate) fn tidegate(listener: &str) -> Option<Self> {
        Self::tidegate_at(sibling_binary("tidegate"), listener)
    }

    /// Starts an earlier build of Tidegate, if `TIDEGATE_BEFORE` contains its path.
    pub(crate) fn tidegate_before(listener: &str) -> Option<Self> {
        Self::tidegate_at(PathBuf::from(std::env::var_os("TIDEGATE_BEFORE")?), listener)
    }

    fn tidegate_at(program: PathBuf, listener: &str) -> Option<Self> {
        let rules = write_temp_file(
            "rules.yaml",
            "rules: [{name: api, per: ['user | api_key'], limit: 1000000 per second}]",
        );
        let mut command = pinned_command(program);
        command.args(["serve", "--rules", rules.to_str().unwrap()]);
        for other in ["http", "grpc", "resp"] {
            command.args([
                format!("--{other}").as_str(),
                if other == listener { "127.0.0.1:0" } else { "off" },
            ]);
        }
        let mut child = command.args(["--admin", "off"]).spawn().unwrap();
        let port = parse_port(&first_line(&mut child));
        Some(Self::wait_until_listening(child, port, None))
    }

    pub(crate) fn throttlecrab(listener: &str) -> Option<Self> {
        let home = PathBuf::from(std::env::var_os("HOME")?);
        let program = home.join(THROTTLECRAB_FOLDER).join("throttlecrab-server");
        if !program.exists() {
            eprintln!("throttlecrab-server is not installed, skipping it");
            return None;
        }
        let port = Port::free();
        let mut command = pinned_command(program);
        command.args([&format!("--{listener}"), &format!("--{listener}-host"), "127.0.0.1"]);
        command.args([&format!("--{listener}-port"), &port.number().to_string()]);
        command.args(["--store", "periodic", "--log-level", "error"]);
        Some(Self::wait_until_listening(command.spawn().unwrap(), port.number(), Some(port)))
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
        let file = write_temp_file("nginx.conf", &text);
        let mut command = pinned_command("nginx".into());
        let Ok(child) = command.args(["-c", file.to_str().unwrap()]).spawn() else {
            eprintln!("nginx is not installed, skipping it");
            return None;
        };
        Some(Self::wait_until_listening(child, port.number(), Some(port)))
    }

    pub(crate) fn redis() -> Option<Self> {
        let redis = Redis::start();
        let process = redis.info("process_id").unwrap().parse().unwrap();
        pin(process);
        let port = redis.port();
        redis.query::<()>(&["SET", "key:000000000001", "value"]);
        Some(Self { port, process, _resource: ServerResource::Redis(redis) })
    }

    fn wait_until_listening(child: Child, port: u16, reserved_port: Option<Port>) -> Self {
        let server = Self {
            port,
            process: child.id(),
            _resource: ServerResource::Child(child, reserved_port),
        };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(20), "no server listens on {port}");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// Returns the CPU time that the server and its children have used so far, in microseconds.
    pub(crate) fn cpu_micros(&self) -> f64 {
        let children = Command::new("pgrep").args(["-P", &self.process.to_string()]).output();
        let children = children.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
        let children = children.unwrap_or_default();
        let all =
            std::iter::once(self.process.to_string()).chain(children.lines().map(str::to_owned));
        // The 14th and 15th fields are user and system time in hundredths of a second. The second field is a name in
        // parentheses.
        let ticks = all.filter_map(|process| {
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
            let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
            Some(fields[11].parse::<f64>().ok()? + fields[12].parse::<f64>().ok()?)
        });
        ticks.sum::<f64>() * 10_000.0
    }
}

/// Returns the path of a program in the folder of this one.
fn sibling_binary(name: &str) -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name(name);
    assert!(path.exists(), "no {}; make bench-listeners builds it", path.display());
    path
}

fn pinned_command(program: PathBuf) -> Command {
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

fn parse_port(line: &str) -> u16 {
    let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok());
    port.unwrap_or_else(|| panic!("no address: {line:?}"))
}

fn write_temp_file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tidegate-bench-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}
