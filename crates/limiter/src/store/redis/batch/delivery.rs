//! An answer on its way, and what becomes of slots that it brings to nobody.

use std::sync::Weak;

use super::super::node::Node;
use super::{Item, Told};
use crate::store::Refund;

/// What a request is told. Slots in flight that come with it are released unless somebody takes it: who
/// asked may have gone, and nobody else knows their names. So is a place in a queue, if it is the last:
/// nobody will come when its turn is.
#[derive(Debug)]
pub(in super::super) struct Delivery {
    told: Told,
    slots: Vec<Refund>,
    node: Weak<Node>,
}

impl Delivery {
    /// An answer to these items by a node, or that there is none.
    pub(super) fn new(items: &[Item], told: Told, node: &Weak<Node>) -> Self {
        let outcomes = told.iter().flatten();
        let slots = items.iter().zip(outcomes);
        let slots =
            slots.filter(|(item, outcome)| item.limit.is_held() || !outcome.delay().is_zero());
        let slots = slots.filter_map(|(item, outcome)| {
            let Item { key, limit, cost } = item.clone();
            Some(Refund { key, limit, cost, slip: Some(outcome.slip()?) })
        });
        Self { slots: slots.collect(), told, node: Weak::clone(node) }
    }

    /// The answer, for who will release its slots.
    pub(in super::super) fn take(mut self) -> Told {
        self.slots.clear();
        std::mem::replace(&mut self.told, Ok(super::Outcomes::new()))
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !self.slots.is_empty()
            && let Some(node) = self.node.upgrade()
        {
            node.release(std::mem::take(&mut self.slots));
        }
    }
}
