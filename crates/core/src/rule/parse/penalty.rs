//! Reads penalties: `{after: 10x, within: 1m, block: 10m}`.

use super::super::error::Report;
use super::super::penalty::{After, Penalty};
use super::super::raw::{keys, noted, required, text};
use super::super::yaml::Node;
use crate::quota::window_of;
use crate::time::Span;

pub(super) fn penalty(node: &Node<'_>, report: &mut Report) -> Option<Penalty> {
    let [after, within, block] = keys(node, "penalty", ["after", "within", "block"], report)?;
    let after = required(after, "penalty.after", node.at, report).and_then(|node| {
        let text = text(node, "penalty.after", report)?;
        noted(text.parse::<After>(), node, report)
    });
    let within = required(within, "penalty.within", node.at, report)
        .and_then(|node| span(node, "penalty.within", report));
    let block = required(block, "penalty.block", node.at, report)
        .and_then(|node| span(node, "penalty.block", report));
    noted(Penalty::new(after?, within?, block?), node, report)
}

fn span(node: &Node<'_>, what: &str, report: &mut Report) -> Option<Span> {
    let text = text(node, what, report)?;
    noted(window_of(text.trim()).map_err(|error| format!("{what}: {error}")), node, report)
}
