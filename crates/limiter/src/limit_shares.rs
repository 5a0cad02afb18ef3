//! Shares of limits, computed once and kept.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tidegate_core::Limit;

use crate::store::Share;

/// Most shares that are kept. Callers may bring limits of their own, so their number is not bounded by
/// the rules. A full cache is emptied.
const MAX_CACHED_SHARES: usize = 4_096;

/// A cache of the shares of limits. Equal shares are one allocation.
#[derive(Debug, Default)]
pub(crate) struct LimitShares {
    cached: RwLock<SharesByLimit>,
}

type SharesByLimit = HashMap<(Arc<Limit>, Share), Arc<Limit>>;

impl LimitShares {
    /// Returns one share of a limit.
    pub(crate) fn of(&self, limit: &Arc<Limit>, share: Share) -> Arc<Limit> {
        let name = (Arc::clone(limit), share);
        if let Some(part) = self.cached.read().get(&name) {
            return Arc::clone(part);
        }
        let mut cached = self.cached.write();
        if cached.len() >= MAX_CACHED_SHARES {
            cached.clear();
        }
        let part = cached.entry(name);
        Arc::clone(part.or_insert_with(|| Arc::new(limit.share(share.index, share.of))))
    }
}
