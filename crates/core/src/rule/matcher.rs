//! Finds the few items of many whose conditions a request may satisfy.

use std::hash::BuildHasherDefault;

use siphasher::sip::SipHasher13;

use super::condition::Condition;
use crate::request::Request;

/// How tables of the operator's words are hashed.
///
/// The key is fixed, and no randomness is drawn: clients choose what is looked up, never what is
/// stored, so they can't fill one bucket of the table to slow the others down.
pub(super) type Hashing = BuildHasherDefault<SipHasher13>;

/// An index over sets of conditions.
#[derive(Clone, Debug, Default)]
pub(super) struct Matcher {
    len: usize,
}

impl Matcher {
    /// Files each item under its conditions.
    pub(super) fn new<'c>(items: impl ExactSizeIterator<Item = &'c [Condition]> + Clone) -> Self {
        Self { len: items.len() }
    }

    /// Calls `found` with every item that the request may satisfy: none is missed, in no
    /// particular order, some twice, and those that it does not satisfy may be among them.
    pub(super) fn candidates(&self, _request: &Request<'_>, mut found: impl FnMut(usize)) {
        (0..self.len).for_each(&mut found);
    }
}
