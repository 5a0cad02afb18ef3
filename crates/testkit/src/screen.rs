//! A terminal for tests: input and screen content.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::process::Process;
use crate::tool::Tool;
use crate::wait::{poll, wait_for};

/// A real terminal, drawn by tmux, with a shell in it.
///
/// Dropping this value ends it and all programs in it.
#[derive(Debug)]
pub struct Screen {
    folder: TempDir,
    _server: Process,
}

impl Screen {
    /// Creates a terminal of so many columns and lines, with a prompt that reads `ready>`.
    ///
    /// # Panics
    /// [`Tool::Tmux`] is missing or does not start.
    pub fn open(columns: u16, lines: u16) -> Self {
        // Not in the build's folder: the path of a socket has to be short.
        let folder = TempDir::new().expect("a folder for a socket can be made");
        let socket = folder.path().join("socket");
        let mut server = Process::command(Tool::Tmux.expect_path());
        server.args(["-u", "-D", "-f", "/dev/null", "-S"]).arg(&socket);
        server.env("LC_ALL", "C.UTF-8").env_remove("TMUX").env_remove("NO_COLOR");
        let screen = Self { folder, _server: Process::spawn(server) };
        // The socket file exists shortly before the server listens.
        wait_for("a terminal is there", || {
            screen.ask(&["set-option", "-g", "exit-empty", "off"]).ok()
        });
        let (columns, lines) = (columns.to_string(), lines.to_string());
        let shell = "env -u ENV PS1='ready> ' sh";
        screen.tmux(&["new-session", "-d", "-x", &columns, "-y", &lines, shell]);
        screen.wait_for("ready>");
        screen
    }

    /// Returns the text on the screen, without trailing spaces.
    pub fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until the screen contains a text, and returns the whole screen.
    ///
    /// # Panics
    /// The text does not appear.
    pub fn wait_for(&self, text: &str) -> String {
        self.wait_until(text, |shown| shown.contains(text))
    }

    /// Waits until the screen satisfies a condition, and returns it.
    ///
    /// # Panics
    /// The wait times out; the message contains the screen.
    pub fn wait_until(&self, what: &str, is_there: impl Fn(&str) -> bool) -> String {
        let found = poll(|| Some(self.text()).filter(|shown| is_there(shown)));
        found.unwrap_or_else(|| panic!("waited in vain: {what}\n{}", self.text()))
    }

    /// Types a line, with the key that ends it.
    pub fn enter(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.press("Enter");
    }

    /// Presses a key, named as tmux names it: `q`, `Tab`, `C-c`.
    pub fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// Resizes the terminal.
    pub fn resize(&self, columns: u16, lines: u16) {
        let (columns, lines) = (columns.to_string(), lines.to_string());
        self.tmux(&["resize-window", "-x", &columns, "-y", &lines]);
    }

    /// Returns a format variable of tmux: `alternate_on`, `cursor_flag`.
    pub fn fact(&self, name: &str) -> String {
        self.tmux(&["display-message", "-p", &format!("#{{{name}}}")]).trim_end().to_owned()
    }

    /// Records every byte that is written from now on, for [`bytes`](Self::bytes).
    pub fn record(&self) {
        let file = self.recording();
        self.tmux(&["pipe-pane", "-O", &format!("exec cat > '{}'", file.display())]);
        wait_for("the recording starts", || file.exists().then_some(()));
    }

    /// Returns the bytes that were written since [`record`](Self::record).
    pub fn bytes(&self) -> Vec<u8> {
        fs::read(self.recording()).unwrap_or_default()
    }

    fn recording(&self) -> PathBuf {
        self.folder.path().join("bytes")
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        self.ask(arguments).unwrap_or_else(|said| panic!("tmux {arguments:?}: {said}"))
    }

    /// Runs a tmux command, and returns its output or its error.
    fn ask(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(Tool::Tmux.expect_path());
        command.arg("-u").arg("-S").arg(self.folder.path().join("socket")).args(arguments);
        command.env("LC_ALL", "C.UTF-8").env_remove("TMUX");
        let Output { status, stdout, stderr } = command.output().expect("tmux can be run");
        match status.success() {
            true => Ok(String::from_utf8_lossy(&stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&stderr).into_owned()),
        }
    }
}
