//! The proxies under test, each with its own processes.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tidegate_testkit::{Port, Process, Tool, wait_for};

/// A path to the upstream: one proxy, or none.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    server: Rc<Server>,
    /// Kept alive, because all contenders use it.
    _upstream: Rc<Server>,
}

/// A running server. It is stopped by SIGTERM, because a killed NGINX master leaves its workers running.
struct Server {
    port: u16,
    process: Process,
    _reserved_port: Option<Port>,
    _folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.process.exited().is_none() {
            self.process.signal("TERM");
            self.process.wait();
        }
    }
}

impl Contender {
    /// Starts all contenders. Ratios are relative to the one at [`BASE_INDEX`](crate::table::BASE_INDEX).
    pub(crate) fn all() -> Vec<Self> {
        let answer = "sixty-eight bytes of text, which is what many small answers come to.";
        let upstream = Rc::new(start_nginx("", &format!("return 200 '{answer}';")));
        let port = upstream.port;
        let upstream_config = format!(
            "upstream behind {{ server 127.0.0.1:{port}; keepalive 128; keepalive_requests 100000000; }}"
        );
        let proxy_config =
            "proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection '';";
        let zone_config = "limit_req_zone $binary_remote_addr zone=api:10m rate=1000000r/s;";
        let limit_config = "limit_req zone=api burst=1000000 nodelay;";
        let without_limit = start_nginx(&upstream_config, proxy_config);
        let with_limit = start_nginx(
            &format!("{upstream_config} {zone_config}"),
            &format!("{limit_config} {proxy_config}"),
        );
        let contender = |name, server| Self { name, server, _upstream: Rc::clone(&upstream) };
        let mut contenders = vec![
            contender("no proxy", Rc::clone(&upstream)),
            contender("NGINX `proxy_pass`", Rc::new(without_limit)),
            contender("NGINX `limit_req`, `proxy_pass`", Rc::new(with_limit)),
            contender("tidegate", Rc::new(start_tidegate(sibling_binary("tidegate"), port))),
        ];
        if let Some(before) = std::env::var_os("TIDEGATE_BEFORE") {
            contenders
                .push(contender("tidegate before", Rc::new(start_tidegate(before.into(), port))));
        }
        contenders
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.server.port)
    }

    /// Returns the CPU time that the processes have used so far, in microseconds.
    pub(crate) fn cpu_micros(&self) -> f64 {
        let all: Vec<ProcessStat> = std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| ProcessStat::read(&entry.ok()?.path()))
            .collect();
        let root = self.server.process.id();
        let own = all.iter().filter(|stat| stat.id == root || stat.parent == root);
        own.map(|stat| stat.cpu_micros).sum()
    }
}

/// Fields of `/proc/ID/stat`.
struct ProcessStat {
    id: u32,
    parent: u32,
    cpu_micros: f64,
}

impl ProcessStat {
    /// Reads the fields. Returns `None` if the folder is not that of a running process.
    fn read(folder: &Path) -> Option<Self> {
        let id = folder.file_name()?.to_str()?.parse().ok()?;
        let contender = std::fs::read_to_string(folder.join("stat")).ok()?;
        // The fields follow the name in parentheses: state, parent, and so on. The 12th and 13th are user and system time,
        // in hundredths of a second.
        let fields: Vec<&str> = contender.rsplit_once(") ")?.1.split(' ').collect();
        let ticks = fields[11].parse::<f64>().ok()? + fields[12].parse::<f64>().ok()?;
        Some(Self { id, parent: fields[1].parse().ok()?, cpu_micros: ticks * 10_000.0 })
    }
}

/// Starts NGINX with one worker per core. `location_config` applies to every path, `http_config` to the http block.
fn start_nginx(http_config: &str, location_config: &str) -> Server {
    let reserved_port = Port::free();
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "daemon off; worker_processes {workers}; pid {at}/pid; error_log {at}/error.log crit;
         events {{ worker_connections 4096; }}
         http {{
           access_log off; default_type text/plain; keepalive_requests 100000000;
           client_body_temp_path {at}/a; proxy_temp_path {at}/b; fastcgi_temp_path {at}/c;
           uwsgi_temp_path {at}/d; scgi_temp_path {at}/e;
           {http_config}
           server {{ listen 127.0.0.1:{port}; location / {{ {location_config} }} }}
         }}",
        workers = std::thread::available_parallelism().unwrap(),
        at = folder.path().display(),
        port = reserved_port.number(),
    );
    let file = folder.path().join("nginx.conf");
    std::fs::write(&file, text).unwrap();
    let program = Tool::Nginx.path().expect("nginx; tools/setup-bench.sh installs it");
    let mut command = Process::command(program);
    command.arg("-e").arg(folder.path().join("error.log")).arg("-c").arg(file);
    wait_until_listening(
        Process::spawn(command),
        reserved_port.number(),
        Some(reserved_port),
        folder,
    )
}

fn sibling_binary(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().with_file_name(name)
}

/// Starts the gateway with a limit per address that is never reached.
fn start_tidegate(program: PathBuf, upstream: u16) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    let text = "rules: [{name: api, per: [ip], limit: 1000000 per second, burst: 100000000}]";
    std::fs::write(&rules, text).unwrap();
    assert!(program.exists(), "no {}; make bench-gateway builds it", program.display());
    let mut command = Process::command(program);
    command.arg("serve").arg("--rules").arg(&rules).env("STATE_DIRECTORY", folder.path());
    for listener in ["--http", "--grpc", "--resp", "--admin"] {
        command.args([listener, "off"]);
    }
    command.args(["--gateway", "127.0.0.1:0", "--upstream"]);
    let process = Process::spawn({
        command.arg(format!("http://127.0.0.1:{upstream}"));
        command
    });
    let contender = process.stdout().find("gateway ");
    let port = contender.rsplit(':').next().and_then(|port| port.parse().ok());
    let port = port.unwrap_or_else(|| panic!("no address: {contender:?}"));
    wait_until_listening(process, port, None, folder)
}

fn wait_until_listening(
    process: Process,
    port: u16,
    reserved_port: Option<Port>,
    folder: tempfile::TempDir,
) -> Server {
    wait_for("a server listens", || {
        assert!(process.exited().is_none(), "the server exited:\n{}", process.log_tail());
        TcpStream::connect(("127.0.0.1", port)).ok()
    });
    Server { port, process, _reserved_port: reserved_port, _folder: folder }
}
