//! The entries of the block list: all, in pages, or the networks alone.

use std::borrow::Cow;
use std::sync::Arc;

use crate::query;
use hyper::Response;
use tidegate_api::{BlockEntry, BlockPage};
use tidegate_core::{CallError, Timestamp, quote};
use tidegate_limiter::block::{BlockList, BlockOrigin, Entry, Subject};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_service::top::parse_client_id;

/// Most entries of one page. Without `limit`, a response has all entries.
const MAX_PAGE_ENTRIES: usize = 10_000;

/// The query of a request for the list.
enum ListQuery {
    /// Networks alone, one per line.
    Plain,
    /// At most `limit` entries, in the order of subjects, from the first one after `after`.
    Page { limit: usize, after: Option<Subject> },
}

impl ListQuery {
    fn parse(query: Option<&str>) -> Result<Self, CallError> {
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
        let limit = query::number("limit", limit.as_deref(), usize::MAX, MAX_PAGE_ENTRIES)?;
        let wanted = "the id of a network or client";
        let after = after
            .map(|id| parse_id(&id).ok_or_else(|| CallError::invalid("after", quote(&id), wanted)));
        Ok(Self::Page { limit, after: after.transpose()? })
    }
}

/// Returns the entries that a query selects.
pub(crate) fn list(blocks: &BlockList, now: Timestamp, query: Option<&str>) -> Response<Body> {
    let (limit, after) = match ListQuery::parse(query) {
        Ok(ListQuery::Page { limit, after }) => (limit, after),
        Ok(ListQuery::Plain) => {
            let lines = blocks.export(now).into_iter().map(|network| format!("{network}\n"));
            return response::text_no_store(lines.collect::<String>());
        }
        Err(error) => return response::call_error(&error),
    };
    let (entries, usage) = (blocks.entries(now), blocks.usage());
    // A search by order, because the entry `after` may have been removed since the last page.
    let start = after
        .map_or(0, |after| entries.partition_point(|entry: &Arc<Entry>| entry.subject <= after));
    let rest = &entries[start..];
    let (page, more) = rest.split_at(limit.min(rest.len()));
    let next = page.last().filter(|_| !more.is_empty()).map(|last| last.subject.to_string().into());
    let entries = page.iter().map(|entry| block_entry(entry, now)).collect();
    response::json(
        200,
        JSON,
        &BlockPage { entries, next, refused: usage.refused, evicted: usage.evicted },
    )
}

/// Parses the id of a client or network.
pub(crate) fn parse_id(id: &str) -> Option<Subject> {
    let network = || tidegate_rules::parse_network(id).ok().map(Subject::Network);
    parse_client_id(id).or_else(network)
}

/// Returns the JSON form of an entry. It has the names of a client's attributes, never their values.
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
        action: entry.action.name().into(),
        until: entry.until.as_secs_ceil(),
        seconds_left: entry.until.since(now).as_secs_ceil(),
        by: by.into(),
        rule,
        reason: Some(Cow::from(entry.reason.as_str())).filter(|reason| !reason.is_empty()),
        added: entry.added.as_secs_ceil(),
    }
}
