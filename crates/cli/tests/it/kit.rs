//! Starts the binary, speaks HTTP to it, and stops it again.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;

/// How long a test waits for something that will never come before it fails.
const FOREVER: Duration = Duration::from_secs(60);

pub(crate) fn tidegate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    for name in std::env::vars_os().map(|(name, _)| name) {
        if name.to_str().is_some_and(|name| name.starts_with("TIDEGATE_")) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command to its end: exit code, stdout, stderr.
pub(crate) fn run(arguments: &[&str]) -> (i32, String, String) {
    shown(tidegate().args(arguments).output().unwrap())
}

pub(crate) fn shown(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// What a command said, without the lines of files that it showed below its errors.
pub(crate) fn without_excerpts(notes: &str) -> String {
    let is_excerpt = |line: &str| {
        line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').starts_with('|')
    };
    notes.lines().filter(|line| !is_excerpt(line)).map(|line| format!("{line}\n")).collect()
}

/// A directory of a test's own.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("it-{}-{count}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits until a server has kept a version of its rules in a directory, or a later one: until the disk has it, which
/// takes more than a minute while other processes write much.
pub(crate) fn wait_for_copy(folder: &str, version: u64) {
    let kept = |path: PathBuf| -> Option<u64> {
        let text = std::fs::read_to_string(path).ok()?;
        text.split_once("\"version\":")?.1.split_once(',')?.0.parse().ok()
    };
    let mut is_kept = || {
        let entries = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let mut copies = entries.filter(|path| path.extension().is_some_and(|end| end == "yaml"));
        copies.any(|path| kept(path) >= Some(version)).then_some(())
    };
    let found = (0..5).find_map(|_| tidegate_testkit::poll(&mut is_kept));
    assert!(found.is_some(), "no copy of version {version} is kept in {folder}");
}

/// A running server on a port of its own.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    listeners: Vec<(String, SocketAddr)>,
    notes: Mutex<Receiver<String>>,
    _folder: Folder,
}

impl Server {
    /// A server with these rules.
    pub(crate) fn with_rules(rules: &str) -> Self {
        let folder = Folder::new();
        let rules = folder.file("rules.yaml", rules);
        Self::launch(&["--rules", &rules, "--http", "127.0.0.1:0"], folder)
    }

    pub(crate) fn with_config(config: &str) -> Self {
        let folder = Folder::new();
        let config = folder.file("tidegate.yaml", config);
        Self::launch(&["--config", &config], folder)
    }

    pub(crate) fn with_arguments(arguments: &[&str]) -> Self {
        Self::launch(arguments, Folder::new())
    }

    fn launch(arguments: &[&str], folder: Folder) -> Self {
        let mut command = tidegate();
        command.arg("serve").args(arguments);
        Self::spawn(command, folder)
    }

    pub(crate) fn launch_command(command: Command) -> Self {
        Self::spawn(command, Folder::new())
    }

    /// Starts a server, each listener on a port of its own unless the command says where.
    fn spawn(mut command: Command, folder: Folder) -> Self {
        // What one server keeps is no other's business.
        if !command.get_envs().any(|(name, _)| name == "STATE_DIRECTORY") {
            command.env("STATE_DIRECTORY", folder.path());
        }
        for listener in ["--grpc", "--resp", "--admin"] {
            if !command.get_args().any(|argument| argument == listener) {
                command.args([listener, "127.0.0.1:0"]);
            }
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (send, notes) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        // The listeners are printed in one go, the admin listener last.
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut off = command.get_args().skip_while(|argument| *argument != "--admin");
        let last =
            if off.nth(1).is_some_and(|listener| listener == "off") { None } else { Some("admin") };
        let mut listeners = Vec::new();
        for line in stdout.lines().map_while(Result::ok) {
            let (listener, address) = line.split_once(' ').unwrap();
            listeners.push((listener.to_owned(), address.parse().unwrap()));
            if last.is_none_or(|last| last == listener) {
                break;
            }
        }
        let Some((_, address)) = listeners.iter().find(|(listener, _)| listener == "http") else {
            panic!("not serving: {listeners:?} {:#?}", notes.iter().collect::<Vec<_>>())
        };
        Self { child, address: *address, listeners, notes: Mutex::new(notes), _folder: folder }
    }

    /// Where a listener is.
    pub(crate) fn listener(&self, name: &str) -> SocketAddr {
        self.listeners.iter().find(|(listener, _)| listener == name).unwrap().1
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn admin_url(&self) -> String {
        format!("http://{}", self.listener("admin"))
    }

    /// The next line of stderr that contains `text`.
    pub(crate) fn note(&self, text: &str) -> String {
        loop {
            let line = self.notes.lock().unwrap().recv_timeout(FOREVER).expect(text);
            if line.contains(text) {
                return line;
            }
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap();
        assert!(sent.success());
    }

    /// Stops it where it is: it keeps its sockets and does nothing until it is sent `CONT`.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
        // The signal reaches one thread after another.
        let stopped = |thread: PathBuf| {
            let line = std::fs::read_to_string(thread.join("stat")).unwrap_or_default();
            line.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
        };
        tidegate_testkit::wait_for("every thread to be stopped", || {
            let threads = std::fs::read_dir(format!("/proc/{}/task", self.id())).unwrap();
            threads.map(|thread| thread.unwrap().path()).all(stopped).then_some(())
        });
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::to(self.address)
    }

    /// One request to the admin listener.
    pub(crate) fn manage(&self, method: &str, path: &str, body: &str) -> Response {
        let mut connection = self.connect_admin();
        connection.send(method, path, body);
        connection.receive(method == "HEAD")
    }

    /// As [`manage`](Self::manage), with headers.
    pub(crate) fn manage_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response {
        let mut connection = self.connect_admin();
        let headers: String =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}");
        connection.write(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes());
        connection.receive(method == "HEAD")
    }

    pub(crate) fn connect_admin(&self) -> Connection {
        Connection::to(self.listener("admin"))
    }

    /// One request on a connection of its own.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Response {
        let mut connection = self.connect();
        connection.send(method, path, body);
        connection.receive(method == "HEAD")
    }

    pub(crate) fn check(&self, body: &str) -> Response {
        self.ask("POST", "/v1/check", body)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One connection, kept alive.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(FOREVER)).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    /// A connection of a client with this address, of which this machine has many.
    pub(crate) fn from(client: IpAddr, to: SocketAddr) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.bind((client, 0).into())?;
            socket.connect(to).await?.into_std()
        })?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(FOREVER))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, body: &str) {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        self.write(request.as_bytes());
    }

    /// Reads one response; that of a HEAD request has no body whatever its length says.
    pub(crate) fn receive(&mut self, head_only: bool) -> Response {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status: {line:?}"));
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).unwrap();
            match line.trim_end().split_once(": ") {
                Some((name, value)) => headers.push((name.to_owned(), value.to_owned())),
                None => break,
            }
        }
        let mut response = Response { status, headers, body: String::new() };
        let length: usize = response.header("content-length").unwrap_or("0").parse().unwrap();
        if !head_only {
            let mut body = vec![0; length];
            self.stream.read_exact(&mut body).unwrap();
            response.body = String::from_utf8(body).unwrap();
        }
        response
    }

    /// What is left on the connection until the server closes it.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        // A reset is an end like any other.
        let _ = self.stream.read_to_end(&mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    }
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}
