//! An envoyproxy/ratelimit file as it is written: which keys stand where.

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::build::MAX_DEPTH;

/// A whole file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawFile {
    pub(crate) domain: Option<Spanned<String>>,
    pub(crate) descriptors: Option<Vec<Spanned<RawDescriptor>>>,
}

/// One item of `descriptors`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawDescriptor {
    pub(crate) key: Option<Spanned<String>>,
    pub(crate) value: Option<Spanned<String>>,
    pub(crate) rate_limit: Option<Spanned<RawLimit>>,
    pub(crate) descriptors: Option<Vec<Spanned<RawDescriptor>>>,
    pub(crate) shadow_mode: Option<bool>,
    pub(crate) quota_mode: Option<bool>,
    pub(crate) share_threshold: Option<Spanned<bool>>,
    /// These two choose what its statistics are called; ours are called by their rule.
    #[serde(rename = "detailed_metric")]
    _detailed_metric: Option<bool>,
    #[serde(rename = "value_to_metric")]
    _value_to_metric: Option<bool>,
    pub(crate) metadata: Option<Spanned<serde_json::Map<String, serde_json::Value>>>,
}

/// A `rate_limit`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLimit {
    pub(crate) unit: Option<Spanned<String>>,
    pub(crate) requests_per_unit: Option<Spanned<String>>,
    pub(crate) unlimited: Option<bool>,
    pub(crate) name: Option<String>,
    pub(crate) replaces: Option<Vec<Spanned<RawReplaced>>>,
}

/// One item of `replaces`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawReplaced {
    pub(crate) name: Option<String>,
}

/// Most values of one file.
const MAX_NODES: usize = 4_000_000;
/// Most values that aliases may add, which is where a small file would become a huge one.
const MAX_REPLAYED: usize = 1_000_000;
/// Deepest nesting: a list and a map for each level of descriptors, and something for the metadata.
const MAX_NESTED: usize = 2 * MAX_DEPTH + 16;

/// Reads a file; `text` must be no longer than the caller is willing to hold in memory.
pub(crate) fn read(text: &str) -> Result<RawFile, serde_saphyr::Error> {
    if text.trim().is_empty() {
        return Ok(RawFile::default());
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: MAX_NODES * 3,
            max_nodes: MAX_NODES,
            max_depth: MAX_NESTED,
            max_total_scalar_bytes: usize::MAX,
            max_recorded_anchor_events: MAX_NODES,
            // One anchor that many descriptors share is what anchors are for.
            enforce_alias_anchor_ratio: false,
            max_aliases: MAX_REPLAYED,
            max_merge_keys: MAX_REPLAYED,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_REPLAYED,
            max_replay_stack_depth: MAX_NESTED,
        },
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options)
}
