//! The YAML structure of an envoyproxy/ratelimit file.

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
    /// This key and the next choose names of statistics. They are ignored: statistics here have the names of rules.
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

/// Most YAML nodes of one file.
const MAX_NODES: usize = 4_000_000;
/// Most YAML nodes that aliases may add: nested aliases could expand a small file without bound.
const MAX_ALIAS_NODES: usize = 1_000_000;
/// Deepest nesting: a list and a map for each level of descriptors, and 16 levels for the metadata.
const MAX_NESTING: usize = 2 * MAX_DEPTH + 16;

/// Parses a file. The caller limits the length of `text`.
pub(crate) fn parse(text: &str) -> Result<RawFile, serde_saphyr::Error> {
    if text.trim().is_empty() {
        return Ok(RawFile::default());
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: MAX_NODES * 3,
            max_nodes: MAX_NODES,
            max_depth: MAX_NESTING,
            max_total_scalar_bytes: usize::MAX,
            max_recorded_anchor_events: MAX_NODES,
            // Many descriptors may share one anchor.
            enforce_alias_anchor_ratio: false,
            max_aliases: MAX_ALIAS_NODES,
            max_merge_keys: MAX_ALIAS_NODES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_ALIAS_NODES,
            max_replay_stack_depth: MAX_NESTING,
        },
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options)
}
