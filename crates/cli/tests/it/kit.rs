//! A running `tidegate` process, and HTTP connections to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;
use tidegate_testkit::WAIT_TIMEOUT;

/// Returns the command `tidegate` without the `TIDEGATE_` variables of this process.
pub(crate) fn tidegate() -> Command {
    without_variables(Command::new(env!("CARGO_BIN_EXE_tidegate")))
}

/// Returns the command `tidegate` with a hard limit of open files.
pub(crate) fn tidegate_with_open_files(max: u32) -> Command {
    let mut command = without_variables(Command::new("sh"));
    let script = format!("ulimit -n {max} && exec \"$0\" \"$@\"");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_tidegate")]);
    command
}

fn without_variables(mut command: Command) -> Command {
    for name in std::env::vars_os().map(|(name, _)| name) {
        if name.to_str().is_some_and(|name| name.starts_with("TIDEGATE_")) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs `tidegate` until it exits, and returns its exit code, stdout and stderr.
pub(crate) fn run(arguments: &[&str]) -> (i32, String, String) {
    exit_code_and_output(tidegate().args(arguments).output().unwrap())
}

/// Returns the exit code, stdout and stderr of a process.
pub(crate) fn exit_code_and_output(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Returns the stderr of a command without the excerpts of files below its errors.
pub(crate) fn without_excerpts(stderr: &str) -> String {
    let is_excerpt = |line: &str| {
        line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').starts_with('|')
    };
    stderr.lines().filter(|line| !is_excerpt(line)).map(|line| format!("{line}\n")).collect()
}

/// A directory for one test, removed when dropped.
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

    /// Writes a file and returns its path.
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

/// Waits until the local copy of the rules in a directory has this version or a later one.
///
/// Waits for five times the usual timeout: a sync takes more than a minute while other processes write a lot.
pub(crate) fn wait_for_rules_copy(folder: &str, version: u64) {
    let version_of = |path: PathBuf| -> Option<u64> {
        let text = std::fs::read_to_string(path).ok()?;
        text.split_once("\"version\":")?.1.split_once(',')?.0.parse().ok()
    };
    let mut is_stored = || {
        let entries = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let mut copies = entries.filter(|path| path.extension().is_some_and(|end| end == "yaml"));
        copies.any(|path| version_of(path) >= Some(version)).then_some(())
    };
    let found = (0..5).find_map(|_| tidegate_testkit::poll(&mut is_stored));
    assert!(found.is_some(), "no copy of version {version} in {folder}");
}

/// A running server, each listener on a free port. Killed when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    listeners: Vec<(String, SocketAddr)>,
    log_lines: Mutex<Receiver<String>>,
    _folder: Folder,
}

impl Server {
    /// Starts a server with these rules.
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

    /// Starts a server. A listener that the command does not set gets a free port.
    fn spawn(mut command: Command, folder: Folder) -> Self {
        // Servers do not share their state unless the test sets the directory.
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
        let (sender, log_lines) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        // The server prints all listeners at once, the admin listener last.
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut admin = command.get_args().skip_while(|argument| *argument != "--admin");
        let last =
            if admin.nth(1).is_some_and(|address| address == "off") { None } else { Some("admin") };
        let mut listeners = Vec::new();
        for line in stdout.lines().map_while(Result::ok) {
            let (listener, address) = line.split_once(' ').unwrap();
            listeners.push((listener.to_owned(), address.parse().unwrap()));
            if last.is_none_or(|last| last == listener) {
                break;
            }
        }
        let Some((_, address)) = listeners.iter().find(|(listener, _)| listener == "http") else {
            panic!("not serving: {listeners:?} {:#?}", log_lines.iter().collect::<Vec<_>>())
        };
        Self {
            child,
            address: *address,
            listeners,
            log_lines: Mutex::new(log_lines),
            _folder: folder,
        }
    }

    /// Returns the address of a listener.
    pub(crate) fn listener(&self, name: &str) -> SocketAddr {
        self.listeners.iter().find(|(listener, _)| listener == name).unwrap().1
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn admin_url(&self) -> String {
        format!("http://{}", self.listener("admin"))
    }

    /// Waits for the next line of stderr that contains `text`, and returns it.
    pub(crate) fn wait_for_log(&self, text: &str) -> String {
        loop {
            let line = self.log_lines.lock().unwrap().recv_timeout(WAIT_TIMEOUT).expect(text);
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

    /// Suspends the process: it keeps its sockets, but does nothing until it gets `CONT`.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
        // The kernel stops one thread after another.
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
        Connection::connect(self.address)
    }

    /// Sends one request to the admin listener, on a new connection.
    pub(crate) fn request_admin(&self, method: &str, path: &str, body: &str) -> Response {
        let mut connection = self.connect_admin();
        connection.send(method, path, body);
        connection.receive(method == "HEAD")
    }

    /// Sends one request with headers to the admin listener, on a new connection.
    pub(crate) fn request_admin_with(
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
        Connection::connect(self.listener("admin"))
    }

    /// Sends one request to the HTTP listener, on a new connection.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> Response {
        let mut connection = self.connect();
        connection.send(method, path, body);
        connection.receive(method == "HEAD")
    }

    /// Sends `POST /v1/check` to the HTTP listener.
    pub(crate) fn check(&self, body: &str) -> Response {
        self.request("POST", "/v1/check", body)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A persistent HTTP/1.1 connection.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    /// Connects from a client address, such as any address of the loopback network.
    pub(crate) fn connect_from(client: IpAddr, to: SocketAddr) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.bind((client, 0).into())?;
            socket.connect(to).await?.into_std()
        })?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(WAIT_TIMEOUT))?;
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

    /// Reads one response. With `head_only`, no body follows, whatever the `Content-Length` is.
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

    /// Reads until the server closes the connection.
    pub(crate) fn read_to_end(&mut self) -> String {
        let mut rest = Vec::new();
        // A connection reset counts as the end, too.
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
        let header = self.headers.iter().find(|(header, _)| header == name);
        header.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}
