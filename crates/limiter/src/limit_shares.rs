//! Shares of limits, computed once and cached.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tidegate_core::Limit;

use crate::store::Share;

/// Most shares in the cache; a full cache is emptied. Callers may check with limits of their own, so the rules do
/// not bound the number of limits.
const MAX_CACHED_SHARES: usize = 4_096;

/// A cache of shares of limits. Equal shares use one allocation.
#[derive(Debug, Default)]
pub(crate) struct LimitShares {
    cached: RwLock<SharesByLimit>,
}

type SharesByLimit = HashMap<(Arc<Limit>, Share), Arc<Limit>>;

impl LimitShares {
    /// Returns one share of a limit.
    pub(crate) fn share(&self, limit: &Arc<Limit>, share: Share) -> Arc<Limit> {
        let cache_key = (Arc::clone(limit), share);
        if let Some(part) = self.cached.read().get(&cache_key) {
            return Arc::clone(part);
        }
        let mut cached = self.cached.write();
        if cached.len() >= MAX_CACHED_SHARES {
            cached.clear();
        }
        let part = cached.entry(cache_key);
        Arc::clone(part.or_insert_with(|| Arc::new(limit.share(share.index, share.of))))
    }
}
