//! A RESP connection without network and decisions, for fuzzing.

use crate::resp::auth::RespAuth;
use crate::resp::check;
use crate::resp::commands::{CommandKind, CommandSpec};
use crate::resp::frame::{Arguments, Frame};
use crate::resp::leading_checks::assert_read_as_frame;
use crate::resp::reply::{ReplyBuffer, RespError};
use crate::resp::session::RespSession;
use crate::resp::throttle::ThrottleCommand;

/// Returns the replies to input that arrives in these pieces. `+DECIDED` replaces each decision.
///
/// # Panics
/// A check in its common form is read in another way than by the general path.
pub fn parse_only(pieces: &[&[u8]]) -> Vec<u8> {
    let (mut session, mut replies) =
        (RespSession::new(1, RespAuth::default()), ReplyBuffer::default());
    let mut input = Vec::new();
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            assert_read_as_frame(&input, &session.limits);
            let consumed = match Frame::read(&input) {
                Ok(None) => break,
                Ok(Some(Frame { arguments, length })) => {
                    let frame = &input[..length];
                    if let Err(error) = run_command(arguments, frame, &mut session, &mut replies) {
                        replies.error(&error);
                    }
                    length
                }
                Err(error) => {
                    replies.error(&RespError::error(error));
                    return replies.as_bytes().to_vec();
                }
            };
            input.drain(..consumed);
        }
    }
    replies.as_bytes().to_vec()
}

fn run_command(
    arguments: Arguments<'_>,
    frame: &[u8],
    session: &mut RespSession,
    replies: &mut ReplyBuffer,
) -> Result<(), RespError> {
    if arguments.is_empty() {
        return Ok(());
    }
    let command = CommandSpec::find(&arguments);
    if let Some(transaction) = &mut session.transaction
        && transaction.queue(&command, frame)?
    {
        replies.simple("QUEUED");
        return Ok(());
    }
    let kind = command?.kind;
    if kind != CommandKind::Exec {
        return execute(kind, arguments, session, replies);
    }
    let commands = session.end_transaction()?;
    replies.array(commands.count);
    let mut frames = &commands.frames[..];
    while let Ok(Some(Frame { arguments, length })) = Frame::read(frames)
        && let Ok(command) = CommandSpec::find(&arguments)
    {
        frames = &frames[length..];
        if let Err(error) = execute(command.kind, arguments, session, replies) {
            replies.error(&error);
        }
    }
    Ok(())
}

fn execute(
    kind: CommandKind,
    arguments: Arguments<'_>,
    session: &mut RespSession,
    replies: &mut ReplyBuffer,
) -> Result<(), RespError> {
    match kind {
        CommandKind::Throttle => {
            ThrottleCommand::parse(&arguments, &mut session.limits)?;
            replies.simple("DECIDED");
        }
        CommandKind::Check => {
            check::parse(&arguments)?;
            replies.simple("DECIDED");
        }
        kind => session.handle(kind, &arguments, replies)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Generates lines that resemble commands.
    fn line() -> impl Strategy<Value = String> {
        let name = prop_oneof![
            Just("CL.THROTTLE"),
            Just("tg.check"),
            Just("HELLO"),
            Just("CLIENT"),
            Just("COMMAND"),
            Just("CONFIG"),
            Just("AUTH"),
            Just("PING"),
            Just("RESET"),
            Just("MULTI"),
            Just("exec"),
            Just("DISCARD"),
            Just("NOPE"),
        ];
        let word = prop_oneof![
            "[a-z]{0,3}",
            "-?[0-9]{1,20}",
            "(GET|INFO|DOCS|COUNT|SETNAME|GETNAME|ID|AUTH|save|ping)",
            "\"[ -~]{0,5}\"",
        ];
        (name, vec(word, 0..8)).prop_map(|(name, words)| format!("{name} {}\r\n", words.join(" ")))
    }

    proptest! {
        #[test]
        fn replies_do_not_depend_on_the_pieces_of_the_input(lines in vec(line(), 0..8)) {
            crate::fuzzing::resp(lines.concat().as_bytes());
        }
    }
}
