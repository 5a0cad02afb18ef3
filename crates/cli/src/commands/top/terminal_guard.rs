//! The terminal in raw mode on the alternate screen.

use std::io;

use ratatui::DefaultTerminal;

/// A terminal in raw mode on the alternate screen. It is restored on drop and on panic.
pub(crate) struct TerminalGuard {
    terminal: DefaultTerminal,
}

impl TerminalGuard {
    /// Switches to raw mode and to the alternate screen.
    ///
    /// # Errors
    /// The terminal can't be switched; its previous state is restored.
    pub(crate) fn enter() -> io::Result<Self> {
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                // `try_init` may have failed after raw mode was on.
                let _ = ratatui::try_restore();
                Err(error)
            }
        }
    }

    pub(crate) fn terminal(&mut self) -> &mut DefaultTerminal {
        &mut self.terminal
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        // A closed terminal needs no restore.
        let _ = ratatui::try_restore();
    }
}
