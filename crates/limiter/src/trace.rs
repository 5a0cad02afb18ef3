//! Tracing spans of checks, for operators that trace requests.
//!
//! The spans have level DEBUG and the target [`SPAN_TARGET`]: `call` with the listener, inside it `check` with the rule
//! and the result, inside it `store` with the number of charges. While no subscriber enables them, a check pays for a
//! comparison with the maximum level of the process.

use std::future::Future;

use tidegate_core::Decision;
use tracing::field::Empty;
use tracing::{Instrument, Level, Span};

/// The target of all spans. A subscriber enables them by it.
pub const SPAN_TARGET: &str = "tidegate::trace";

/// Returns whether a subscriber enables the spans.
#[inline]
#[must_use]
pub fn is_enabled() -> bool {
    tracing::span_enabled!(target: SPAN_TARGET, Level::DEBUG)
}

/// Runs a future inside the span of a call at this listener.
///
/// Callers test [`is_enabled`] first and pass the future without this wrapper if spans are disabled: a wrapper would copy
/// the future, which has several kilobytes.
pub async fn in_call_span<F: Future>(listener: &'static str, future: F) -> F::Output {
    future.instrument(tracing::debug_span!(target: SPAN_TARGET, "call", listener)).await
}

/// The span of one check; `None` while spans are disabled, so that a check then pays for a comparison only.
pub(crate) struct CheckSpan(Option<Span>);

impl CheckSpan {
    #[inline]
    pub(crate) fn new() -> Self {
        Self(is_enabled().then(Self::open))
    }

    #[cold]
    fn open() -> Span {
        tracing::debug_span!(target: SPAN_TARGET, "check", rule = Empty, allowed = Empty)
    }

    /// Returns the span of one call to the store. It ends when it is dropped.
    #[inline]
    pub(crate) fn store_call(&self, charges: usize) -> Option<Span> {
        self.0.as_ref().map(|check| Self::open_store_call(check, charges))
    }

    #[cold]
    fn open_store_call(check: &Span, charges: usize) -> Span {
        tracing::debug_span!(target: SPAN_TARGET, parent: check, "store", charges)
    }

    /// Records the strictest rule, and whether the request is allowed. The client is left out: its identity may be a
    /// secret.
    #[inline]
    pub(crate) fn record(&self, decision: &Decision) {
        if let Some(check) = &self.0 {
            Self::record_decision(check, decision);
        }
    }

    #[cold]
    fn record_decision(check: &Span, decision: &Decision) {
        if let Some(outcome) = decision.strictest_rule() {
            check.record("rule", &*outcome.rule);
        }
        check.record("allowed", decision.is_allowed());
    }
}
