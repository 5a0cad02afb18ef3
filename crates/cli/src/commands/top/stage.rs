//! The terminal while it is ours.

use std::io;

use ratatui::DefaultTerminal;

/// A terminal that shows us alone, and becomes what it was when this is dropped, or when anything panics.
pub(crate) struct Stage {
    terminal: DefaultTerminal,
}

impl Stage {
    /// Takes the terminal.
    ///
    /// # Errors
    /// It can't be taken; it is then as it was.
    pub(crate) fn enter() -> io::Result<Self> {
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                // It may have been taken in part.
                let _ = ratatui::try_restore();
                Err(error)
            }
        }
    }

    pub(crate) fn terminal(&mut self) -> &mut DefaultTerminal {
        &mut self.terminal
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Whoever has closed it does not mind.
        let _ = ratatui::try_restore();
    }
}
