//! The canonical form of a rule: everything that it decides by, without the way it was written.

use tidegate_core::Limit;

use crate::accuracy::Accuracy;
use crate::condition::{Condition, ValueTest};
use crate::limits::{Override, TierLimits};
use crate::penalty::Penalty;
use crate::per::AttributeChain;
use crate::rollout::Rollout;
use crate::rule::{CallerRefunds, Mode, OnStoreFailure};

/// Every field of a rule, under its name in a rules document.
///
/// The version of a set of rules, differences between sets and all views of a rule read this form. Patterns there name
/// every field, so that a new one does not compile until each of them handles it.
#[derive(Clone, Copy, Debug)]
pub struct CanonicalRule<'a> {
    /// `name`.
    pub name: &'a str,
    /// `match`.
    pub conditions: &'a [Condition],
    /// `per`.
    pub per: &'a [AttributeChain],
    /// `limit`, with `burst`, `algorithm`, `queue` and `hold`.
    pub limit: &'a Limit,
    /// `tiers`.
    pub tiers: Option<&'a TierLimits>,
    /// `overrides`.
    pub overrides: &'a [Override],
    /// `mode`.
    pub mode: Mode,
    /// `accuracy`, with `sync`, `max_ahead`, `shards` and `hot`.
    pub accuracy: Accuracy,
    /// `on_store_failure`.
    pub on_store_failure: OnStoreFailure,
    /// `rollout`.
    pub rollout: Option<Rollout>,
    /// `penalty`.
    pub penalty: Option<&'a Penalty>,
    /// `caller_refunds`.
    pub caller_refunds: CallerRefunds,
}

impl CanonicalRule<'_> {
    /// Passes the bytes of each field to `out`, with the name of the field, in a fixed order. A field may come in several
    /// pieces.
    ///
    /// Two rules have the same bytes if and only if they decide alike: comments, layout and the order of alternatives do
    /// not count. Nodes of a fleet compare hashes of these bytes, those of other releases too.
    pub fn encode(&self, mut out: impl FnMut(&'static str, &[u8])) {
        let Self {
            name,
            conditions,
            per,
            limit,
            tiers,
            overrides,
            mode,
            accuracy,
            on_store_failure,
            rollout,
            penalty,
            caller_refunds,
        } = *self;
        encode_text(name, &mut |bytes| out("name", bytes));
        encode_conditions(conditions, &mut |bytes| out("match", bytes));
        encode_texts(per.iter().map(AttributeChain::as_str), &mut |bytes| out("per", bytes));
        encode_text(&limit.to_string(), &mut |bytes| out("limit", bytes));
        encode_tiers(tiers, &mut |bytes| out("tiers", bytes));
        encode_count(overrides.len(), &mut |bytes| out("overrides", bytes));
        for item in overrides {
            item.encode(|bytes| out("overrides", bytes));
        }
        encode_text(mode.name(), &mut |bytes| out("mode", bytes));
        encode_text(&accuracy.to_string(), &mut |bytes| out("accuracy", bytes));
        encode_text(on_store_failure.name(), &mut |bytes| out("on_store_failure", bytes));
        encode_rollout(rollout, &mut |bytes| out("rollout", bytes));
        let penalty = penalty
            .map(|penalty| format!("{} {} {}", penalty.after(), penalty.within(), penalty.block()));
        encode_text(&penalty.unwrap_or_default(), &mut |bytes| out("penalty", bytes));
        // Without bytes if refunds are denied, so that such rules keep the bytes that earlier releases have.
        match caller_refunds {
            CallerRefunds::Deny => out("caller_refunds", &[]),
            CallerRefunds::Allow => {
                encode_text(caller_refunds.name(), &mut |bytes| out("caller_refunds", bytes));
            }
        }
    }
}

impl Override {
    /// Passes the bytes of the override's canonical form to `out`, in pieces.
    pub fn encode(&self, mut out: impl FnMut(&[u8])) {
        let Self { conditions, limit, until, rollout } = self;
        encode_conditions(conditions, &mut out);
        let limit = limit.as_ref().map(ToString::to_string);
        encode_text(limit.as_deref().unwrap_or(Self::EXEMPT_WORD), &mut out);
        let until = until.map(|until| until.as_micros().to_string());
        encode_text(&until.unwrap_or_default(), &mut out);
        encode_rollout(*rollout, &mut out);
    }
}

pub(crate) fn encode_conditions(conditions: &[Condition], out: &mut impl FnMut(&[u8])) {
    encode_count(conditions.len(), out);
    for condition in conditions {
        encode_text(condition.attribute(), out);
        encode_test(condition.test(), out);
    }
}

fn encode_test(test: &ValueTest, out: &mut impl FnMut(&[u8])) {
    match test {
        ValueTest::OneOf(patterns) => {
            encode_text("one of", out);
            encode_texts(patterns.exact(), out);
            encode_count(patterns.globs().len(), out);
            patterns.globs().for_each(|glob| encode_text(&glob.to_string(), out));
            // Conditions that ignore nothing keep the bytes that earlier releases have.
            if !patterns.ignored().is_none() {
                encode_text(&format!("ignore{}", patterns.ignored()), out);
            }
        }
        ValueTest::In(networks) => {
            encode_text("in", out);
            encode_count(networks.iter().len(), out);
            networks.iter().for_each(|network| encode_text(&network.to_string(), out));
        }
        ValueTest::Present => encode_text("present", out),
        ValueTest::Absent => encode_text("absent", out),
        ValueTest::Not(test) => {
            encode_text("not", out);
            encode_test(test, out);
        }
    }
}

fn encode_tiers(tiers: Option<&TierLimits>, out: &mut impl FnMut(&[u8])) {
    let Some(tiers) = tiers else {
        return encode_count(0, out);
    };
    encode_count(tiers.iter().len(), out);
    encode_text(tiers.by(), out);
    for (name, limit) in tiers.iter() {
        encode_text(name, out);
        encode_text(&limit.to_string(), out);
    }
}

fn encode_rollout(rollout: Option<Rollout>, out: &mut impl FnMut(&[u8])) {
    encode_text(&rollout.map(|share| share.to_string()).unwrap_or_default(), out);
}

fn encode_texts<'t>(texts: impl ExactSizeIterator<Item = &'t str>, out: &mut impl FnMut(&[u8])) {
    encode_count(texts.len(), out);
    texts.for_each(|text| encode_text(text, out));
}

/// Encodes a text after its length, so that two texts never have the encoding of two other texts.
fn encode_text(text: &str, out: &mut impl FnMut(&[u8])) {
    encode_count(text.len(), out);
    out(text.as_bytes());
}

fn encode_count(count: usize, out: &mut impl FnMut(&[u8])) {
    out(&u64::try_from(count).unwrap_or(u64::MAX).to_le_bytes());
}
