//! `CL.THROTTLE key max_burst count period [quantity]`, as redis-cell documents it.
//!
//! Each command carries its limit: a token bucket of `max_burst` + 1 tokens, refilled with `count`
//! tokens per `period` seconds. Numbers that can't be counted exactly are rejected; redis-cell would
//! overflow.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Limit, Quota, Span};
use tidegate_service::call::Protocol;
use tidegate_service::service::Service;

use crate::resp::argument::{number, text};
use crate::resp::frame::Arguments;
use crate::resp::reply::RespError;
use crate::resp::throttle_reply::ThrottleReply;

/// A parsed CL.THROTTLE command.
#[derive(Debug)]
pub(crate) struct ThrottleCommand<'b> {
    key: Cow<'b, str>,
    limit: Arc<Limit>,
    /// The amount to spend; 0 is a peek, a negative amount is a refund.
    quantity: i64,
}

impl<'b> ThrottleCommand<'b> {
    /// Parses the arguments of the command.
    ///
    /// # Errors
    /// An argument is invalid.
    pub(crate) fn parse(
        arguments: &Arguments<'b>,
        limits: &mut LimitCache,
    ) -> Result<Self, RespError> {
        let parameters = LimitParameters::parse(&arguments[2], &arguments[3], &arguments[4])?;
        let quantity = match arguments.get(5) {
            Some(quantity) => number("quantity", quantity, i64::MIN..=i64::MAX)?,
            None => 1,
        };
        let limit = limits.get_or_create(parameters)?;
        let key = text(&arguments[1]);
        Ok(Self { key, limit, quantity })
    }

    /// Returns `true` for a refund, which must not overtake earlier commands.
    pub(crate) fn is_refund(&self) -> bool {
        self.quantity < 0
    }

    /// Spends, peeks or refunds, and returns the numbers of the reply.
    ///
    /// # Errors
    /// The store is unreachable.
    pub(crate) async fn decide(self, service: &Service) -> Result<ThrottleReply, RespError> {
        let cost = self.quantity.unsigned_abs();
        if self.quantity > 0 {
            return ThrottleReply::from_result(
                service.throttle(Protocol::Resp, &self.key, &self.limit, cost).await,
            );
        }
        let reply = match cost {
            0 => service.throttle(Protocol::Resp, &self.key, &self.limit, 0).await,
            _ => service.refund_throttle(Protocol::Resp, &self.key, &self.limit, cost).await,
        };
        ThrottleReply::from_result(reply).map(ThrottleReply::never_limited)
    }
}

/// The arguments of a command that define its limit. `period` is in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitParameters {
    max_burst: u64,
    count: u64,
    period: u64,
}

impl LimitParameters {
    /// Parses the three arguments.
    ///
    /// # Errors
    /// An argument is invalid.
    pub(crate) fn parse(max_burst: &[u8], count: &[u8], period: &[u8]) -> Result<Self, RespError> {
        const MAX_AMOUNT: i64 = Quota::MAX_AMOUNT.cast_signed();
        let max_period = i64::try_from(Quota::MAX_WINDOW.as_secs_ceil()).unwrap_or(i64::MAX);
        Ok(Self {
            max_burst: number("max_burst", max_burst, 0..=MAX_AMOUNT - 1)?.unsigned_abs(),
            count: number("count", count, 1..=MAX_AMOUNT)?.unsigned_abs(),
            period: number("period", period, 1..=max_period)?.unsigned_abs(),
        })
    }

    fn limit(self) -> Result<Arc<Limit>, RespError> {
        let quota = Quota::per(self.count, Span::from_secs(self.period)).burst(self.max_burst + 1);
        let limit = Limit::new(Algorithm::TokenBucket, quota);
        limit.map(Arc::new).map_err(|error| RespError::invalid(format_args!("max_burst: {error}")))
    }
}

/// The limits that a connection used last. A repeated limit needs no allocation.
#[derive(Debug, Default)]
pub(crate) struct LimitCache {
    cached: SmallVec<[(LimitParameters, Arc<Limit>); LimitCache::MAX_ENTRIES]>,
    /// Index of the entry that is replaced next.
    oldest: usize,
}

impl LimitCache {
    const MAX_ENTRIES: usize = 8;

    /// Returns the limit of these parameters, if it is in the cache.
    #[inline]
    pub(crate) fn get(&self, parameters: LimitParameters) -> Option<&Arc<Limit>> {
        self.cached.iter().find(|(cached, _)| *cached == parameters).map(|(_, limit)| limit)
    }

    /// Returns the limit of these parameters, from the cache if possible.
    fn get_or_create(&mut self, parameters: LimitParameters) -> Result<Arc<Limit>, RespError> {
        if let Some(limit) = self.get(parameters) {
            return Ok(Arc::clone(limit));
        }
        let limit = parameters.limit()?;
        let entry = (parameters, Arc::clone(&limit));
        if self.cached.len() < Self::MAX_ENTRIES {
            self.cached.push(entry);
        } else {
            self.cached[self.oldest] = entry;
            self.oldest = (self.oldest + 1) % Self::MAX_ENTRIES;
        }
        Ok(limit)
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str], limits: &mut LimitCache) -> Result<(Arc<Limit>, i64), String> {
        let arguments: Arguments<'_> =
            arguments.iter().map(|argument| Cow::Borrowed(argument.as_bytes())).collect();
        let throttle = ThrottleCommand::parse(&arguments, limits);
        throttle.map(|parsed| (parsed.limit, parsed.quantity)).map_err(|error| error.to_string())
    }

    fn parse_error(arguments: [&str; 4]) -> String {
        let [burst, count, period, quantity] = arguments;
        let arguments = ["CL.THROTTLE", "key", burst, count, period, quantity];
        parse(&arguments, &mut LimitCache::default()).unwrap_err()
    }

    #[test]
    fn capacity_is_one_more_than_max_burst() {
        let limits = &mut LimitCache::default();
        let (limit, quantity) = parse(&["CL.THROTTLE", "key", "15", "30", "60"], limits).unwrap();
        assert_eq!(limit.to_string(), "30 per 60 s, burst 16 (token_bucket)");
        assert_eq!(quantity, 1);
        let (limit, quantity) =
            parse(&["CL.THROTTLE", "key", "0", "1", "1", "-3"], limits).unwrap();
        assert_eq!((limit.capacity(), quantity), (1, -3));
    }

    #[test]
    fn invalid_number_is_rejected_by_name() {
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
            let error = parse_error(arguments);
            assert!(error.starts_with(wanted), "{error}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_rejected_without_overflow() {
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
            let error = parse_error(arguments);
            assert!(error.starts_with(wanted), "{error}");
        }
        let limits = &mut LimitCache::default();
        for quantity in [i64::MIN, i64::MAX] {
            let quantity = quantity.to_string();
            assert!(parse(&["CL.THROTTLE", "key", "0", "1", "1", &quantity], limits).is_ok());
        }
    }

    #[test]
    fn recently_used_limit_is_cached() {
        let limits = &mut LimitCache::default();
        let mut limit_of = |count: usize| {
            let count = count.to_string();
            parse(&["CL.THROTTLE", "key", "1", &count, "1"], limits).unwrap().0
        };
        let first = limit_of(1);
        for count in 2..=LimitCache::MAX_ENTRIES {
            limit_of(count);
        }
        assert!(Arc::ptr_eq(&first, &limit_of(1)));
        limit_of(LimitCache::MAX_ENTRIES + 1);
        assert!(!Arc::ptr_eq(&first, &limit_of(1)));
        assert_eq!(limits.cached.len(), LimitCache::MAX_ENTRIES);
    }
}
