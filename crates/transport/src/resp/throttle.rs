//! `CL.THROTTLE key max_burst count period [quantity]`, as redis-cell documents it.
//!
//! `count` per `period` seconds and `max_burst` more at once are a token bucket that holds `max_burst`
//! and one, and the limit comes with each command. Numbers that could not be counted exactly are
//! refused; redis-cell would overflow.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Limit, Quota, Span};
use tidegate_service::call::Protocol;
use tidegate_service::service::Service;

use super::argument::{number, text};
use super::frame::Arguments;
use super::reply::Refusal;
use super::standing::Standing;

/// One command, ready to be decided.
#[derive(Debug)]
pub(crate) struct Throttle<'b> {
    key: Cow<'b, str>,
    limit: Arc<Limit>,
    /// What to spend; 0 looks, less gives back.
    quantity: i64,
}

impl<'b> Throttle<'b> {
    /// Reads what follows the name of the command.
    ///
    /// # Errors
    /// One of the arguments is not what it must be.
    pub(super) fn read(
        arguments: &mut Arguments<'b>,
        limits: &mut Limits,
    ) -> Result<Self, Refusal> {
        const MOST: i64 = Quota::MAX_AMOUNT.cast_signed();
        let longest = i64::try_from(Quota::MAX_WINDOW.as_secs_ceil()).unwrap_or(i64::MAX);
        let numbers = Numbers {
            max_burst: number("max_burst", &arguments[2], 0..=MOST - 1)?.unsigned_abs(),
            count: number("count", &arguments[3], 1..=MOST)?.unsigned_abs(),
            period: number("period", &arguments[4], 1..=longest)?.unsigned_abs(),
        };
        let quantity = match arguments.get(5) {
            Some(quantity) => number("quantity", quantity, i64::MIN..=i64::MAX)?,
            None => 1,
        };
        let limit = limits.of(numbers)?;
        let key = text("key", std::mem::take(&mut arguments[1]))?;
        Ok(Self { key, limit, quantity })
    }

    /// Whether it gives back, which may not overtake what was asked before it.
    pub(super) fn gives_back(&self) -> bool {
        self.quantity < 0
    }

    /// Decides it.
    ///
    /// # Errors
    /// The store does not answer.
    pub(super) async fn decide(self, service: &Service) -> Result<Standing, Refusal> {
        let cost = self.quantity.unsigned_abs();
        if self.quantity > 0 {
            return Standing::of(
                service.throttle(Protocol::Resp, &self.key, &self.limit, cost).await,
            );
        }
        let reply = match cost {
            0 => service.throttle(Protocol::Resp, &self.key, &self.limit, 0).await,
            _ => service.refund_throttle(Protocol::Resp, &self.key, &self.limit, cost).await,
        };
        Standing::of(reply).map(Standing::unasked)
    }
}

/// The numbers that make a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    max_burst: u64,
    count: u64,
    period: u64,
}

impl Numbers {
    fn limit(self) -> Result<Arc<Limit>, Refusal> {
        let quota = Quota::per(self.count, Span::from_secs(self.period)).burst(self.max_burst + 1);
        let limit = Limit::new(Algorithm::TokenBucket, quota);
        limit.map(Arc::new).map_err(|error| Refusal::error(format_args!("max_burst: {error}")))
    }
}

/// The limits that a connection used last, so that naming one again allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    known: SmallVec<[(Numbers, Arc<Limit>); Limits::MOST]>,
    /// Which one is forgotten next.
    oldest: usize,
}

impl Limits {
    const MOST: usize = 8;

    fn of(&mut self, numbers: Numbers) -> Result<Arc<Limit>, Refusal> {
        if let Some((_, limit)) = self.known.iter().find(|(known, _)| *known == numbers) {
            return Ok(Arc::clone(limit));
        }
        let limit = numbers.limit()?;
        let entry = (numbers, Arc::clone(&limit));
        if self.known.len() < Self::MOST {
            self.known.push(entry);
        } else {
            self.known[self.oldest] = entry;
            self.oldest = (self.oldest + 1) % Self::MOST;
        }
        Ok(limit)
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str], limits: &mut Limits) -> Result<(Arc<Limit>, i64), String> {
        let mut arguments: Arguments<'_> =
            arguments.iter().map(|argument| Cow::Borrowed(argument.as_bytes())).collect();
        let throttle = Throttle::read(&mut arguments, limits);
        throttle.map(|read| (read.limit, read.quantity)).map_err(|refusal| refusal.to_string())
    }

    fn refused(arguments: [&str; 4]) -> String {
        let [burst, count, period, quantity] = arguments;
        let arguments = ["CL.THROTTLE", "key", burst, count, period, quantity];
        read(&arguments, &mut Limits::default()).unwrap_err()
    }

    #[test]
    fn the_numbers_make_a_bucket_of_one_more_than_the_burst() {
        let limits = &mut Limits::default();
        let (limit, quantity) = read(&["CL.THROTTLE", "key", "15", "30", "60"], limits).unwrap();
        assert_eq!(limit.to_string(), "30 per 60 s, burst 16 (token_bucket)");
        assert_eq!(quantity, 1);
        let (limit, quantity) = read(&["CL.THROTTLE", "key", "0", "1", "1", "-3"], limits).unwrap();
        assert_eq!((limit.capacity(), quantity), (1, -3));
    }

    #[test]
    fn numbers_that_are_none_are_refused_by_name() {
        for (arguments, wanted) in [
            (
                ["-1", "30", "60", "1"],
                r#"ERR max_burst: found "-1", wanted a whole number from 0 to"#,
            ),
            (["x", "30", "60", "1"], r#"ERR max_burst: found "x", wanted"#),
            (["15", "0", "60", "1"], r#"ERR count: found "0", wanted a whole number from 1 to"#),
            (["15", "30", "0", "1"], r#"ERR period: found "0", wanted a whole number from 1 to"#),
            (["15", "30", "1.5", "1"], r#"ERR period: found "1.5", wanted"#),
            (["15", "30", "60", ""], r#"ERR quantity: found "", wanted a whole number from -9"#),
        ] {
            let refusal = refused(arguments);
            assert!(refusal.starts_with(wanted), "{refusal}");
        }
    }

    #[test]
    fn no_number_is_too_large_to_be_refused() {
        let huge = i64::MAX.to_string();
        for (arguments, wanted) in [
            (
                [huge.as_str(), "1", "1", "1"],
                "ERR max_burst: found \"9223372036854775807\", wanted",
            ),
            (["0", &huge, "1", "1"], "ERR count: found"),
            (["0", "1", &huge, "1"], "ERR period: found"),
            (
                ["4503599627370495", "1", "315360000", "1"],
                "ERR max_burst: a burst of 4503599627370496",
            ),
            (["0", "1", "1", "9223372036854775808"], "ERR quantity: found"),
        ] {
            let refusal = refused(arguments);
            assert!(refusal.starts_with(wanted), "{refusal}");
        }
        let limits = &mut Limits::default();
        for quantity in [i64::MIN, i64::MAX] {
            let quantity = quantity.to_string();
            assert!(read(&["CL.THROTTLE", "key", "0", "1", "1", &quantity], limits).is_ok());
        }
    }

    #[test]
    fn a_limit_that_was_named_lately_is_not_made_anew() {
        let limits = &mut Limits::default();
        let mut named = |count: usize| {
            let count = count.to_string();
            read(&["CL.THROTTLE", "key", "1", &count, "1"], limits).unwrap().0
        };
        let first = named(1);
        for count in 2..=Limits::MOST {
            named(count);
        }
        assert!(Arc::ptr_eq(&first, &named(1)));
        named(Limits::MOST + 1);
        assert!(!Arc::ptr_eq(&first, &named(1)));
        assert_eq!(limits.known.len(), Limits::MOST);
    }
}
