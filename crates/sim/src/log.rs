//! Access logs, with requests that have the same attributes as on the listeners.
//!
//! A line becomes the attributes that rules mention, by the code that reads them from requests. Lines that can't
//! be read are counted, and the first of them reported.

mod batch;
mod blocks;
mod common;
mod field_names;
mod json;
mod line_reader;
mod sorted;
#[cfg(test)]
mod tests;
mod time;

use std::borrow::Cow;

use clap::ValueEnum;
use memchr::{memchr, memrchr};
use serde::Serialize;
use smallvec::SmallVec;
use tidegate_core::Timestamp;

pub(crate) use batch::RequestBatch;
pub use blocks::open_log;
pub(crate) use line_reader::LineReader;
pub(crate) use sorted::{LogSummary, SortedLog};

/// Reads any bytes as a log in each format, for fuzzing.
///
/// # Panics
/// A bad line has no number, or its report is too long.
#[doc(hidden)]
pub fn parse_only(bytes: &[u8]) {
    let wanted =
        ["cookie.a", "header.referer", "host", "ip", "method", "path", "query.a", "user", "x"];
    let fields = [("x".to_owned(), "a.b".to_owned())];
    for format in LogFormat::value_variants() {
        let reader = LineReader::new(&wanted.into(), &[], &fields, *format);
        let names = reader.names().to_vec();
        let mut sorted = SortedLog::new(bytes, reader);
        // Reading bytes in memory does not fail.
        while let Ok(Some(batch)) = sorted.next(RequestBatch::default()) {
            batch.requests(&names).for_each(drop);
        }
        for bad in sorted.summary().shown {
            assert!(bad.line > 0 && !bad.found.is_empty() && !bad.wanted.is_empty(), "{bad:?}");
            assert!(bad.found.len() + bad.wanted.len() < 2_048, "{bad:?}");
        }
    }
}

/// Maximum length of a line.
pub(crate) const MAX_LINE_BYTES: usize = 64 * 1024;

/// The format of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Detect the format of each line
    #[default]
    Auto,
    /// The Common Log Format; the rest of a line is ignored
    Common,
    /// The same, with referer and user agent
    Combined,
    /// An object on each line
    Json,
}

/// A line that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadLine {
    /// Its number, from 1.
    pub line: u64,
    /// The part that can't be read.
    pub found: String,
    /// The expected form.
    pub wanted: String,
}

/// The reason why a line can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineError {
    found: String,
    wanted: Cow<'static, str>,
}

impl LineError {
    fn new(found: &str, wanted: impl Into<Cow<'static, str>>) -> Self {
        /// Maximum length of the part of a line that an error quotes.
        const MAX_QUOTED_CHARS: usize = 48;
        let mut shown: String = found.chars().take(MAX_QUOTED_CHARS).collect();
        if shown.len() < found.len() {
            shown.push('…');
        }
        Self { found: format!("{shown:?}"), wanted: wanted.into() }
    }

    fn nothing(wanted: impl Into<Cow<'static, str>>) -> Self {
        Self { found: "nothing".to_owned(), wanted: wanted.into() }
    }

    pub(crate) fn at_line(self, line: u64) -> BadLine {
        BadLine { line, found: self.found, wanted: self.wanted.into_owned() }
    }
}

/// The fields of a line's request.
#[derive(Debug, Default)]
struct LineFields<'l> {
    at: Option<Timestamp>,
    address: Option<Cow<'l, str>>,
    user: Option<Cow<'l, str>>,
    method: Option<Cow<'l, str>>,
    target: Option<Cow<'l, str>>,
    host: Option<Cow<'l, str>>,
    /// Headers, by their index among those that are wanted.
    headers: SmallVec<[(usize, Cow<'l, str>); 2]>,
    /// Attributes that the line has by name, by their index among those that are wanted.
    given: SmallVec<[(usize, Cow<'l, str>); 2]>,
}

impl<'l> LineFields<'l> {
    /// Splits a request line: `GET /v1/orders HTTP/1.1`.
    fn request_line(&mut self, line: Cow<'l, str>) -> Result<(), LineError> {
        let wanted = "a request line: a method and a target";
        let (method, target) = match &line {
            Cow::Borrowed(line) => {
                let (method, target) =
                    split_request_line(line).ok_or_else(|| LineError::new(line, wanted))?;
                (Cow::Borrowed(method), Cow::Borrowed(target))
            }
            Cow::Owned(line) => {
                let (method, target) =
                    split_request_line(line).ok_or_else(|| LineError::new(line, wanted))?;
                (method.to_owned().into(), target.to_owned().into())
            }
        };
        self.method.get_or_insert(method);
        self.target.get_or_insert(target);
        Ok(())
    }
}

fn split_request_line(line: &str) -> Option<(&str, &str)> {
    let (method, rest) = line.split_at(memchr(b' ', line.as_bytes())?);
    let rest = &rest[1..];
    // A target may have spaces that should be encoded; the version has none.
    let target = match memrchr(b' ', rest.as_bytes()) {
        Some(last) if rest[last + 1..].starts_with("HTTP/") => &rest[..last],
        _ => rest,
    };
    (!method.is_empty() && !target.is_empty()).then_some((method, target))
}

/// Returns the value unless it is the log's placeholder for none.
fn present(text: &str) -> Option<&str> {
    (!text.is_empty() && text != "-").then_some(text)
}
