//! Reads rollouts: `10%`.

use super::super::error::Report;
use super::super::raw::{noted, text};
use super::super::yaml::Node;
use super::super::{Chain, Rollout};
use super::NOBODY_TO_CHOOSE;

/// The share that is written, if one is; `per` is `None` when it could not be read.
pub(super) fn rollout(
    node: Option<&Node<'_>>,
    per: Option<&[Chain]>,
    report: &mut Report,
) -> Option<Option<Rollout>> {
    let Some(node) = node else {
        return Some(None);
    };
    if per.is_some_and(<[Chain]>::is_empty) {
        report.add(node.at, NOBODY_TO_CHOOSE);
        return None;
    }
    let text = text(node, "rollout", report)?;
    noted(text.parse::<Rollout>(), node, report).map(Some)
}
