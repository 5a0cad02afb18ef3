//! Runs the checks at the start of the input in batches, without a future for each.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::Limit;
use tidegate_service::call::Protocol;
use tidegate_service::service::{CheckBatch, Service};

use crate::resp::argument::cost;
use crate::resp::commands::{CommandKind, CommandSpec};
use crate::resp::connection::MAX_BUFFERED_REPLY_BYTES;
use crate::resp::frame::Frame;
use crate::resp::reply::ReplyBuffer;
use crate::resp::session::RespSession;
use crate::resp::throttle::{LimitCache, LimitParameters};
use crate::resp::throttle_reply::ThrottleReply;

/// A check in its common form: an array of short arguments.
enum CommonCheck<'b> {
    /// TG.CHECK with a rule and a client.
    Rule { rule: &'b [u8], client: &'b [u8], cost: u64 },
    /// CL.THROTTLE with a limit that the connection has used before.
    Throttle { key: &'b [u8], limit: &'b Arc<Limit>, cost: u64 },
}

impl<'b> CommonCheck<'b> {
    /// Parses the check at the start of the input, and returns its length too. Returns `None` for all other input, which
    /// [`Frame::read`](crate::resp::frame::Frame::read) parses.
    #[inline]
    fn read(input: &'b [u8], limits: &'b LimitCache) -> Option<(Self, usize)> {
        let (arguments, rest) = short_number(input.strip_prefix(b"*")?)?;
        let (name, rest) = short_bulk(rest)?;
        let (check, rest) = match arguments {
            3 | 4 if is_name(name, b"TG.CHECK") => {
                let (rule, rest) = short_bulk(rest)?;
                let (client, rest) = short_bulk(rest)?;
                let (cost, rest) = read_cost(rest, arguments == 4)?;
                (Self::Rule { rule, client, cost }, rest)
            }
            5 | 6 if is_name(name, b"CL.THROTTLE") => {
                let (key, rest) = short_bulk(rest)?;
                let (max_burst, rest) = short_bulk(rest)?;
                let (count, rest) = short_bulk(rest)?;
                let (period, rest) = short_bulk(rest)?;
                let (cost, rest) = read_cost(rest, arguments == 6)?;
                let limit = limits.get(LimitParameters::parse(max_burst, count, period).ok()?)?;
                (Self::Throttle { key, limit, cost }, rest)
            }
            _ => return None,
        };
        Some((check, input.len() - rest.len()))
    }

    /// Adds the check to a batch. Returns `false` if the batch can't take it.
    fn add_to(&self, batch: &mut CheckBatch<'b>) -> bool {
        match *self {
            Self::Rule { rule, client, cost } => batch.add(rule, client, cost),
            Self::Throttle { key, limit, cost } => batch.add_throttle(key, limit, cost),
        }
    }
}

/// Returns whether an argument is the name of this command. Most clients send it in upper case.
#[inline]
fn is_name(argument: &[u8], name: &[u8]) -> bool {
    argument == name || argument.eq_ignore_ascii_case(name)
}

/// Parses the last argument of a check, its cost; 1 without it. Returns the rest of the input too.
#[inline]
fn read_cost(input: &[u8], has_cost: bool) -> Option<(u64, &[u8])> {
    if !has_cost {
        return Some((1, input));
    }
    let (argument, rest) = short_bulk(input)?;
    Some((cost(argument).ok()?, rest))
}

/// Parses a bulk string of 1 to 999 bytes, and returns the rest of the input too.
#[inline]
fn short_bulk(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = short_number(input.strip_prefix(b"$")?)?;
    let (bytes, rest) = rest.split_at_checked(length)?;
    Some((bytes, rest.strip_prefix(b"\r\n")?))
}

/// Parses a number from 1 to 999 at the end of a line, and returns the rest of the input too.
#[inline]
fn short_number(input: &[u8]) -> Option<(usize, &[u8])> {
    let digit = |byte: &u8| usize::from(byte - b'0');
    match input {
        [ones @ b'1'..=b'9', b'\r', b'\n', rest @ ..] => Some((digit(ones), rest)),
        [tens @ b'1'..=b'9', ones @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => {
            Some((digit(tens) * 10 + digit(ones), rest))
        }
        [
            hundreds @ b'1'..=b'9',
            tens @ b'0'..=b'9',
            ones @ b'0'..=b'9',
            b'\r',
            b'\n',
            rest @ ..,
        ] => Some((digit(hundreds) * 100 + digit(tens) * 10 + digit(ones), rest)),
        _ => None,
    }
}

/// Runs the checks at the start of the input, until the first other command, and writes their replies. Returns the length
/// of the commands that were run. All others are left to the caller, and were neither charged nor counted.
pub(crate) fn run_leading_checks(
    input: &[u8],
    service: &Service,
    session: &RespSession,
    replies: &mut ReplyBuffer,
) -> usize {
    if session.transaction.is_some() || !session.is_authenticated() || !service.is_synchronous() {
        return 0;
    }
    let Some(first) = CommonCheck::read(input, &session.limits) else { return 0 };
    let rules = service.active_rules();
    let Some(mut batch) = CheckBatch::new(service, &rules, Protocol::Resp) else { return 0 };
    // For each check of the batch, whether it is a CL.THROTTLE.
    let mut throttles: SmallVec<[bool; CheckBatch::MAX_CHECKS]> = SmallVec::new();
    let (mut next, mut consumed) = (Some(first), 0);
    while let Some((check, length)) = next {
        if !check.add_to(&mut batch) {
            break;
        }
        throttles.push(matches!(check, CommonCheck::Throttle { .. }));
        consumed += length;
        if batch.is_full() {
            write_replies(&mut batch, &mut throttles, replies);
            if replies.len() >= MAX_BUFFERED_REPLY_BYTES {
                break;
            }
        }
        next = CommonCheck::read(&input[consumed..], &session.limits);
    }
    write_replies(&mut batch, &mut throttles, replies);
    consumed
}

/// Decides the checks of a batch, and writes their replies.
fn write_replies(
    batch: &mut CheckBatch<'_>,
    throttles: &mut SmallVec<[bool; CheckBatch::MAX_CHECKS]>,
    replies: &mut ReplyBuffer,
) {
    let mut forms = throttles.iter();
    batch.decide(|outcome| {
        let reply = ThrottleReply::from_single_outcome(outcome);
        match forms.next() {
            Some(true) => reply.write_throttle(replies),
            Some(false) | None => reply.write_check(replies),
        }
    });
    throttles.clear();
}

/// Compares the check at the start of the input with the frame that the general path reads, for fuzzing.
///
/// # Panics
/// They differ.
pub(crate) fn assert_read_as_frame(input: &[u8], limits: &LimitCache) {
    let Some((check, length)) = CommonCheck::read(input, limits) else { return };
    let frame = Frame::read(input).expect("a common check is valid").expect("it is complete");
    let (arguments, kind) = (&frame.arguments, CommandSpec::find(&frame.arguments));
    let kind = kind.expect("a common check is a command").kind;
    let optional = |index: usize| arguments.get(index).map_or(Ok(1), |argument| cost(argument));
    assert_eq!(frame.length, length);
    match check {
        CommonCheck::Rule { rule, client, cost } => {
            assert_eq!(kind, CommandKind::Check);
            assert_eq!((&*arguments[1], &*arguments[2]), (rule, client));
            assert_eq!(optional(3).expect("the cost is valid"), cost);
        }
        CommonCheck::Throttle { key, limit, cost } => {
            assert_eq!(kind, CommandKind::Throttle);
            assert_eq!((&*arguments[1], optional(5).expect("the cost is valid")), (key, cost));
            let parameters = LimitParameters::parse(&arguments[2], &arguments[3], &arguments[4]);
            let cached = limits.get(parameters.expect("the limit is valid"));
            assert!(cached.is_some_and(|cached| Arc::ptr_eq(cached, limit)));
        }
    }
}
