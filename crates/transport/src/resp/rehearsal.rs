//! A connection without a network and without anybody who decides, for fuzzing.

use super::check;
use super::frame::{Arguments, Frame};
use super::gate::Gate;
use super::manual::{Entry, Verb};
use super::reply::{Refusal, Replies};
use super::session::Session;
use super::throttle::Throttle;

/// What a client is replied that sends these pieces, where `+ASKED` stands for a decision.
pub fn replies(pieces: &[&[u8]]) -> Vec<u8> {
    let (mut session, mut replies) = (Session::new(1, Gate::default()), Replies::default());
    let mut input = Vec::new();
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            let taken = match Frame::read(&input) {
                Ok(None) => break,
                Ok(Some(Frame { arguments, length })) => {
                    if let Err(refusal) = rehearse(arguments, &mut session, &mut replies) {
                        replies.error(&refusal);
                    }
                    length
                }
                Err(malformed) => {
                    replies.error(&Refusal::error(malformed));
                    return replies.as_bytes().to_vec();
                }
            };
            input.drain(..taken);
        }
    }
    replies.as_bytes().to_vec()
}

fn rehearse(
    mut arguments: Arguments<'_>,
    session: &mut Session,
    replies: &mut Replies,
) -> Result<(), Refusal> {
    if arguments.is_empty() {
        return Ok(());
    }
    match Entry::of(&arguments)?.verb {
        Verb::Throttle => {
            Throttle::read(&mut arguments, &mut session.limits)?;
            replies.simple("ASKED");
        }
        Verb::Check => {
            check::read(arguments)?;
            replies.simple("ASKED");
        }
        verb => session.answer(verb, &arguments, replies)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Lines that are commands or nearly so.
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
        fn a_conversation_goes_the_same_way_in_pieces_of_any_size(lines in vec(line(), 0..8)) {
            crate::fuzzing::resp(lines.concat().as_bytes());
        }
    }
}
