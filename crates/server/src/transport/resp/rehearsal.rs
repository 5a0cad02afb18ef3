//! A connection without a network and without anybody who decides, for fuzzing.

use super::check;
use super::frame::{Arguments, Frame};
use super::gate::Gate;
use super::manual::{Entry, Verb};
use super::reply::{Refusal, Replies};
use super::session::Session;
use super::throttle::Throttle;

/// What a client is replied that sends these pieces, where `+ASKED` stands for a decision.
pub(crate) fn replies(pieces: &[&[u8]]) -> Vec<u8> {
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
