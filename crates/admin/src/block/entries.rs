//! The entries of the block list as they are told: all, in parts, or as networks alone.

use std::borrow::Cow;
use std::sync::Arc;

use crate::query;
use hyper::Response;
use tidegate_api::{BlockEntry, BlockPage};
use tidegate_core::{CallError, Timestamp, quote};
use tidegate_limiter::block::{BlockList, BlockOrigin, Entry, Subject};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_service::top::subject_of;

/// Most entries of one answer. Who does not ask for a part gets all.
const PAGE: usize = 10_000;

/// How the list is asked for.
enum Asked {
    /// Networks alone, one per line.
    Plain,
    /// At most so many entries, those after a subject.
    Part { limit: usize, after: Option<Subject> },
}

impl Asked {
    fn read(query: Option<&str>) -> Result<Self, CallError> {
        let [format, limit, after] =
            query::known(query, ["format", "limit", "after"], "format, limit or after")?;
        match format.as_deref() {
            None | Some("json") => {}
            Some("plain") if limit.is_none() && after.is_none() => return Ok(Self::Plain),
            Some("plain") => {
                return Err(CallError::invalid(
                    "format",
                    quote("plain"),
                    "json for a part of the list",
                ));
            }
            Some(other) => return Err(CallError::invalid("format", quote(other), "json or plain")),
        }
        let limit = query::number("limit", limit.as_deref(), usize::MAX, PAGE)?;
        let wanted = "the id of a network or client";
        let after = after
            .map(|id| of_id(&id).ok_or_else(|| CallError::invalid("after", quote(&id), wanted)));
        Ok(Self::Part { limit, after: after.transpose()? })
    }
}

/// Answers a request for the list.
pub(crate) fn list(blocks: &BlockList, now: Timestamp, query: Option<&str>) -> Response<Body> {
    let (limit, after) = match Asked::read(query) {
        Ok(Asked::Part { limit, after }) => (limit, after),
        Ok(Asked::Plain) => {
            let lines = blocks.export(now).into_iter().map(|network| format!("{network}\n"));
            return response::text_no_store(lines.collect::<String>());
        }
        Err(fault) => return response::call_error(&fault),
    };
    let (entries, usage) = (blocks.entries(now), blocks.usage());
    // The entry to go on after may be gone by now.
    let read = after
        .map_or(0, |after| entries.partition_point(|entry: &Arc<Entry>| entry.subject <= after));
    let rest = &entries[read..];
    let (shown, more) = rest.split_at(limit.min(rest.len()));
    let next =
        shown.last().filter(|_| !more.is_empty()).map(|last| last.subject.to_string().into());
    let entries = shown.iter().map(|entry| block_entry(entry, now)).collect();
    response::json(
        200,
        JSON,
        &BlockPage { entries, next, refused: usage.refused, evicted: usage.evicted },
    )
}

/// Whom an id is about.
pub(crate) fn of_id(id: &str) -> Option<Subject> {
    let network = || tidegate_rules::parse_network(id).ok().map(Subject::Network);
    subject_of(id).or_else(network)
}

/// Returns the JSON of an entry. Values of attributes are not shown.
pub(crate) fn block_entry(entry: &Entry, now: Timestamp) -> BlockEntry<Cow<'_, str>> {
    let (ip, attributes) = match &entry.subject {
        Subject::Network(network) => (Some(network.to_string().into()), None),
        Subject::Client { attributes, .. } => {
            (None, Some(attributes.iter().map(|name| Cow::from(&**name)).collect()))
        }
    };
    let (by, rule) = match &entry.origin {
        BlockOrigin::Penalty { rule } => ("penalty", Some(Cow::from(&**rule))),
        BlockOrigin::Operator => ("operator", None),
    };
    BlockEntry {
        id: entry.subject.to_string().into(),
        ip,
        attributes,
        until: entry.until.as_secs_ceil(),
        seconds_left: entry.until.since(now).as_secs_ceil(),
        by: by.into(),
        rule,
        reason: Some(Cow::from(entry.reason.as_str())).filter(|reason| !reason.is_empty()),
        added: entry.added.as_secs_ceil(),
    }
}
