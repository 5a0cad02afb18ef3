//! Who is measured, each with processes of its own.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tidegate_testkit::{Port, Process, Tool, wait_for};

/// A way to the upstream.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    server: Rc<Server>,
    /// It must stay for the others.
    _upstream: Rc<Server>,
}

/// A running server, which is told to leave at the end: a master that is killed leaves its workers behind.
struct Server {
    port: u16,
    process: Process,
    _claim: Option<Port>,
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
    /// Everybody. The one that ratios are to is [`BASE`](crate::table::BASE).
    pub(crate) fn all() -> Vec<Self> {
        let answer = "sixty-eight bytes of text, which is what many small answers come to.";
        let upstream = Rc::new(nginx("", &format!("return 200 '{answer}';")));
        let port = upstream.port;
        let pool = format!(
            "upstream behind {{ server 127.0.0.1:{port}; keepalive 128; keepalive_requests 100000000; }}"
        );
        let pass =
            "proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection '';";
        let zone = "limit_req_zone $binary_remote_addr zone=api:10m rate=1000000r/s;";
        let limit = "limit_req zone=api burst=1000000 nodelay;";
        let plain = nginx(&pool, pass);
        let limited = nginx(&format!("{pool} {zone}"), &format!("{limit} {pass}"));
        let line = |name, server| Self { name, server, _upstream: Rc::clone(&upstream) };
        let mut contenders = vec![
            line("no proxy", Rc::clone(&upstream)),
            line("NGINX `proxy_pass`", Rc::new(plain)),
            line("NGINX `limit_req`, `proxy_pass`", Rc::new(limited)),
            line("tidegate", Rc::new(tidegate(beside("tidegate"), port))),
        ];
        if let Some(before) = std::env::var_os("TIDEGATE_BEFORE") {
            contenders.push(line("tidegate before", Rc::new(tidegate(before.into(), port))));
        }
        contenders
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.server.port)
    }

    /// CPU time that its processes have used so far, in microseconds.
    pub(crate) fn cpu_micros(&self) -> f64 {
        let all: Vec<Stat> = std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| Stat::read(&entry.ok()?.path()))
            .collect();
        let root = self.server.process.id();
        let own = all.iter().filter(|stat| stat.id == root || stat.parent == root);
        own.map(|stat| stat.cpu_micros).sum()
    }
}

/// What is of interest in `/proc/ID/stat`.
struct Stat {
    id: u32,
    parent: u32,
    cpu_micros: f64,
}

impl Stat {
    /// Nothing for what is no process, or not one any more.
    fn read(folder: &Path) -> Option<Self> {
        let id = folder.file_name()?.to_str()?.parse().ok()?;
        let line = std::fs::read_to_string(folder.join("stat")).ok()?;
        // Fields after the name, which is in parentheses: state, parent, ... user and system time as the 12th and 13th, in
        // hundredths of a second.
        let fields: Vec<&str> = line.rsplit_once(") ")?.1.split(' ').collect();
        let ticks = fields[11].parse::<f64>().ok()? + fields[12].parse::<f64>().ok()?;
        Some(Self { id, parent: fields[1].parse().ok()?, cpu_micros: ticks * 10_000.0 })
    }
}

/// NGINX with a worker for each core, which does `this` for any path.
fn nginx(outside: &str, this: &str) -> Server {
    let claim = Port::free();
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "daemon off; worker_processes {workers}; pid {at}/pid; error_log {at}/error.log crit;
         events {{ worker_connections 4096; }}
         http {{
           access_log off; default_type text/plain; keepalive_requests 100000000;
           client_body_temp_path {at}/a; proxy_temp_path {at}/b; fastcgi_temp_path {at}/c;
           uwsgi_temp_path {at}/d; scgi_temp_path {at}/e;
           {outside}
           server {{ listen 127.0.0.1:{port}; location / {{ {this} }} }}
         }}",
        workers = std::thread::available_parallelism().unwrap(),
        at = folder.path().display(),
        port = claim.number(),
    );
    let file = folder.path().join("nginx.conf");
    std::fs::write(&file, text).unwrap();
    let program = Tool::Nginx.path().expect("nginx; tools/setup-bench.sh installs it");
    let mut command = Process::command(program);
    command.arg("-e").arg(folder.path().join("error.log")).arg("-c").arg(file);
    serving(Process::spawn(command), claim.number(), Some(claim), folder)
}

fn beside(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().with_file_name(name)
}

/// The gateway, with a limit per address that is never reached.
fn tidegate(program: PathBuf, upstream: u16) -> Server {
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
    let line = process.stdout().find("gateway ");
    let port = line.rsplit(':').next().and_then(|port| port.parse().ok());
    let port = port.unwrap_or_else(|| panic!("no address: {line:?}"));
    serving(process, port, None, folder)
}

fn serving(process: Process, port: u16, claim: Option<Port>, folder: tempfile::TempDir) -> Server {
    wait_for("a server listens", || {
        assert!(process.exited().is_none(), "it ended at once:\n{}", process.log_tail());
        TcpStream::connect(("127.0.0.1", port)).ok()
    });
    Server { port, process, _claim: claim, _folder: folder }
}
