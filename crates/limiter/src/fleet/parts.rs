//! Parts of limits, cut once and kept.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tidegate_core::Limit;

use crate::store::Share;

/// Most parts that are kept. Callers may bring limits of their own, as many as they like.
const MOST: usize = 4_096;

/// Parts of limits: equal ones are one and the same.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    cut: RwLock<Cut>,
}

type Cut = HashMap<(Arc<Limit>, Share), Arc<Limit>>;

impl Parts {
    /// The part of a limit that is a share's.
    pub(crate) fn of(&self, limit: &Arc<Limit>, share: Share) -> Arc<Limit> {
        let name = (Arc::clone(limit), share);
        if let Some(part) = self.cut.read().get(&name) {
            return Arc::clone(part);
        }
        let mut cut = self.cut.write();
        if cut.len() >= MOST {
            cut.clear();
        }
        let part = cut.entry(name);
        Arc::clone(part.or_insert_with(|| Arc::new(limit.share(share.index, share.of))))
    }
}
