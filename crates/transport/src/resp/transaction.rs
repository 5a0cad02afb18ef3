//! `MULTI` and `EXEC`: commands of a transaction are queued, and run as one pipeline.
//!
//! A transaction is not atomic: commands of other clients can be decided between its own. Client libraries
//! use it to run all commands or, if one of them is invalid, none.

use tidegate_core::InvalidReason;

use crate::resp::commands::{CommandKind, CommandSpec};
use crate::resp::reply::RespError;

/// Largest number of bytes of the commands of one transaction.
const MAX_TRANSACTION_BYTES: usize = 256 * 1024;

/// The commands after a `MULTI`.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    /// The frames of the queued commands, in order.
    frames: Vec<u8>,
    /// The number of the queued commands.
    commands: usize,
    /// True if a command was rejected. `EXEC` then runs nothing.
    is_aborted: bool,
}

/// The commands of a complete transaction.
#[derive(Debug)]
pub(crate) struct QueuedCommands {
    pub(crate) frames: Vec<u8>,
    pub(crate) count: usize,
}

impl Transaction {
    /// Queues a command with its frame. Returns `false` for a command that runs at once.
    ///
    /// # Errors
    /// The command is unknown, invalid or not allowed here, or the transaction is too long. `EXEC` will run nothing.
    pub(crate) fn queue(
        &mut self,
        command: &Result<&'static CommandSpec, RespError>,
        frame: &[u8],
    ) -> Result<bool, RespError> {
        let queued = match command {
            Ok(command) => self.append(command.kind, frame),
            Err(error) => Err(error.clone()),
        };
        if queued.is_err() {
            *self = Self { is_aborted: true, ..Self::default() };
        }
        queued
    }

    fn append(&mut self, kind: CommandKind, frame: &[u8]) -> Result<bool, RespError> {
        match kind {
            CommandKind::Throttle | CommandKind::Check | CommandKind::Ping | CommandKind::Echo => {}
            CommandKind::Multi
            | CommandKind::Exec
            | CommandKind::Discard
            | CommandKind::Quit
            | CommandKind::Reset => return Ok(false),
            _ => return Err(RespError::invalid("Command not allowed inside a transaction")),
        }
        if self.is_aborted {
            return Ok(true);
        }
        if frame.len() > MAX_TRANSACTION_BYTES - self.frames.len() {
            let error = RespError::invalid(format_args!(
                "transaction: found more than {MAX_TRANSACTION_BYTES} bytes, wanted at most {MAX_TRANSACTION_BYTES}"
            ));
            return Err(error.because(InvalidReason::TooLarge));
        }
        self.frames.extend_from_slice(frame);
        self.commands += 1;
        Ok(true)
    }

    /// Ends the transaction and returns its commands.
    ///
    /// # Errors
    /// A command was rejected.
    pub(crate) fn into_commands(self) -> Result<QueuedCommands, RespError> {
        if self.is_aborted {
            let text = "Transaction discarded because of previous errors.";
            return Err(RespError::coded("EXECABORT", text));
        }
        Ok(QueuedCommands { frames: self.frames, count: self.commands })
    }
}
