//! Processes that end with their test.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::skew;
use crate::tool::Tool;
use crate::wait::{WAIT_TIMEOUT, poll, wait_for};

/// A running program.
///
/// It is killed when this value is dropped, and by the kernel when the test runner itself is killed.
#[derive(Debug)]
pub struct Process {
    id: u32,
    child: Mutex<Child>,
    skewed: bool,
    stdout: ProcessOutput,
    stderr: ProcessOutput,
}

impl Process {
    /// Returns a command for [`spawn`](Self::spawn), to be given arguments and surroundings.
    pub fn command(program: impl AsRef<OsStr>) -> Command {
        let Some(setpriv) = Tool::Setpriv.path() else { return Command::new(program) };
        let mut command = Command::new(setpriv);
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    }

    /// Offsets the wall clock of a command made by [`command`](Self::command) by this many seconds, forward or back. Its
    /// monotonic clock is unchanged.
    ///
    /// # Panics
    /// [`Tool::Faketime`] is missing.
    pub fn skew(command: &mut Command, offset_seconds: i64) {
        skew::set(command, offset_seconds);
    }

    /// Starts a command made by [`command`](Self::command); its standard streams become this handle's.
    ///
    /// # Panics
    /// The program cannot be started. A missing program may also appear as one that ends at once.
    pub fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (shown, skewed) = (format!("{command:?}"), skew::is_set(&command));
        let started = spawn_for_good(command);
        let mut child = started.unwrap_or_else(|error| panic!("{shown}: {error}"));
        let stdout = ProcessOutput::of(child.stdout.take().expect("stdout is piped"));
        let stderr = ProcessOutput::of(child.stderr.take().expect("stderr is piped"));
        Self { id: child.id(), child: Mutex::new(child), skewed, stdout, stderr }
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the output on stdout.
    pub fn stdout(&self) -> &ProcessOutput {
        &self.stdout
    }

    /// Returns the output on stderr.
    pub fn stderr(&self) -> &ProcessOutput {
        &self.stderr
    }

    /// Returns the last lines of both streams, for a message about what went wrong.
    pub fn log_tail(&self) -> String {
        let mut tail = String::new();
        for (name, output) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            for line in output.tail(40) {
                let _ = writeln!(tail, "  {name}: {line}");
            }
        }
        tail
    }

    /// Writes a line to its stdin.
    ///
    /// # Panics
    /// The process has closed its stdin.
    pub fn say(&self, line: &str) {
        let mut child = self.child();
        let stdin = child.stdin.as_mut().expect("stdin is piped");
        writeln!(stdin, "{line}").and_then(|()| stdin.flush()).expect("the process reads stdin");
    }

    /// Sends a signal, named as `kill` names it: `TERM`, `INT`, `HUP`.
    ///
    /// # Panics
    /// The process has ended.
    pub fn signal(&self, name: &str) {
        // A shell has its own `kill`; the program of that name is not on every machine.
        let sent = Command::new("sh").arg("-c").arg(format!("kill -{name} {}", self.id)).status();
        assert!(sent.is_ok_and(|sent| sent.success()), "process {}: no SIG{name} sent", self.id);
    }

    /// Stops the process (`SIGSTOP`) until [`resume`](Self::resume). Its sockets stay open.
    pub fn pause(&self) {
        self.signal("STOP");
        wait_for("the process is stopped", || self.is_paused().then_some(()));
    }

    /// Continues after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.signal("CONT");
        wait_for("the process goes on", || (!self.is_paused()).then_some(()));
    }

    /// Returns whether it is stopped where it is.
    pub fn is_paused(&self) -> bool {
        // The state letter follows the name, which is in parentheses.
        let line = fs::read_to_string(format!("/proc/{}/stat", self.id)).unwrap_or_default();
        line.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// Kills the process, and returns after its end.
    pub fn kill(&self) {
        let mut child = self.child();
        // Both fail only for a process that has already ended.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Returns the exit status, or `None` while it runs.
    pub fn exited(&self) -> Option<ExitStatus> {
        self.child().try_wait().expect("a child can be waited for")
    }

    /// Waits for it to end by itself.
    ///
    /// # Panics
    /// The wait times out.
    pub fn wait(&self) -> ExitStatus {
        let ended = poll(|| self.exited());
        ended.unwrap_or_else(|| panic!("process {} does not end:\n{}", self.id, self.log_tail()))
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if self.skewed {
            skew::tidy_up_after(self.id);
        }
    }
}

/// The lines of one stream. All are stored; [`next`](Self::next) and [`find`](Self::find) return each line once.
#[derive(Debug, Clone)]
pub struct ProcessOutput(Arc<(Mutex<OutputLines>, Condvar)>);

#[derive(Debug, Default)]
struct OutputLines {
    all: Vec<String>,
    handed_out: usize,
    ended: bool,
}

impl ProcessOutput {
    fn of(stream: impl Read + Send + 'static) -> Self {
        let output = Self(Arc::default());
        let filled = output.clone();
        thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while stream.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                let text = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
                filled.change(|lines| lines.all.push(text));
                line.clear();
            }
            filled.change(|lines| lines.ended = true);
        });
        output
    }

    /// Returns the next line, once there is one; nothing after the last.
    ///
    /// # Panics
    /// Neither appears within [`WAIT_TIMEOUT`].
    pub fn next(&self) -> Option<String> {
        let (lines, changed) = &*self.0;
        let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = changed.wait_timeout_while(lines, WAIT_TIMEOUT, |lines| {
            lines.handed_out == lines.all.len() && !lines.ended
        });
        let (mut lines, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "no line within {WAIT_TIMEOUT:?} after {:#?}", lines.all);
        let line = lines.all.get(lines.handed_out).cloned()?;
        lines.handed_out += 1;
        Some(line)
    }

    /// Returns the next line that contains `text`; those before it are passed over.
    ///
    /// # Panics
    /// No such line appears.
    pub fn find(&self, text: &str) -> String {
        while let Some(line) = self.next() {
            if line.contains(text) {
                return line;
            }
        }
        panic!("no line with {text:?} in {:#?}", self.tail(usize::MAX))
    }

    /// Returns the last `count` lines so far, handed out or not.
    pub fn tail(&self, count: usize) -> Vec<String> {
        let lines = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.all[lines.all.len().saturating_sub(count)..].to_vec()
    }

    fn change(&self, change: impl FnOnce(&mut OutputLines)) {
        change(&mut self.0.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.0.1.notify_all();
    }
}

/// Starts a child from a thread that lasts as long as this process.
///
/// The kernel sends the parent's death signal when the starting thread ends, and the thread of a test ends before what
/// it shares with other tests should.
fn spawn_for_good(command: Command) -> io::Result<Child> {
    type Order = (Command, SyncSender<io::Result<Child>>);
    static SPAWNER: LazyLock<Sender<Order>> = LazyLock::new(|| {
        let (orders, received) = channel::<Order>();
        thread::spawn(move || {
            for (mut command, started) in received {
                let _ = started.send(command.spawn());
            }
        });
        orders
    });
    let (send, started) = sync_channel(1);
    SPAWNER.send((command, send)).expect("the spawning thread lasts");
    started.recv().expect("the spawning thread answers")
}
