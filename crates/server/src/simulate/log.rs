//! Access logs: who came when, as the doors would have seen it.
//!
//! A line becomes the attributes that rules mention, by the code that reads them from requests. What can't
//! be read is counted and told with its line; the rest goes on.

mod batch;
mod blocks;
mod common;
mod json;
mod names;
mod reading;
mod sorted;
#[cfg(test)]
mod tests;
mod time;

use std::borrow::Cow;

use clap::ValueEnum;
use memchr::{memchr, memrchr};
use serde::Serialize;
use smallvec::SmallVec;
use tidegate::Timestamp;

pub(super) use batch::Batch;
pub(crate) use blocks::opened;
pub(super) use reading::Reading;
pub(super) use sorted::{Sorted, Told};

/// Reads any bytes as a log, in each format: the lines that can't be read.
pub(crate) fn rehearse(bytes: &[u8]) -> Vec<BadLine> {
    let wanted =
        ["cookie.a", "header.referer", "host", "ip", "method", "path", "query.a", "user", "x"];
    let fields = [("x".to_owned(), "a.b".to_owned())];
    let mut bad = Vec::new();
    for format in LogFormat::value_variants() {
        let reading = Reading::new(&wanted.into(), &[], &fields, *format);
        let names = reading.names().to_vec();
        let mut sorted = Sorted::new(bytes, reading);
        // Bytes in memory are read without fail.
        while let Ok(Some(batch)) = sorted.next(Batch::default()) {
            batch.requests(&names).for_each(drop);
        }
        bad.extend(sorted.told().shown);
    }
    bad
}

/// Longest line in bytes.
pub(super) const MAX_LINE: usize = 64 * 1024;

/// How a log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Each line by its looks
    #[default]
    Auto,
    /// The Common Log Format; what follows it on a line is passed over
    Common,
    /// The same, with referer and user agent
    Combined,
    /// An object on each line
    Json,
}

/// A line that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct BadLine {
    /// Its number, from 1.
    pub(crate) line: u64,
    pub(crate) found: String,
    pub(crate) wanted: String,
}

/// Why a line can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flaw {
    found: String,
    wanted: Cow<'static, str>,
}

impl Flaw {
    fn new(found: &str, wanted: impl Into<Cow<'static, str>>) -> Self {
        /// Longest part of a line that is told.
        const SHOWN: usize = 48;
        let mut shown: String = found.chars().take(SHOWN).collect();
        if shown.len() < found.len() {
            shown.push('…');
        }
        Self { found: format!("{shown:?}"), wanted: wanted.into() }
    }

    fn nothing(wanted: impl Into<Cow<'static, str>>) -> Self {
        Self { found: "nothing".to_owned(), wanted: wanted.into() }
    }

    pub(super) fn on(self, line: u64) -> BadLine {
        BadLine { line, found: self.found, wanted: self.wanted.into_owned() }
    }
}

/// What a line says of a request, in the words of the log.
#[derive(Debug, Default)]
struct Fields<'l> {
    at: Option<Timestamp>,
    address: Option<Cow<'l, str>>,
    user: Option<Cow<'l, str>>,
    method: Option<Cow<'l, str>>,
    target: Option<Cow<'l, str>>,
    host: Option<Cow<'l, str>>,
    /// Headers, by their place among those that are wanted.
    headers: SmallVec<[(usize, Cow<'l, str>); 2]>,
    /// Attributes that are there by name, by their place among those that are wanted.
    given: SmallVec<[(usize, Cow<'l, str>); 2]>,
}

impl<'l> Fields<'l> {
    /// Takes apart what stands at the beginning of a request: `GET /v1/orders HTTP/1.1`.
    fn request_line(&mut self, line: Cow<'l, str>) -> Result<(), Flaw> {
        let wanted = "a request line: a method and a target";
        let (method, target) = match &line {
            Cow::Borrowed(line) => {
                let (method, target) = halves(line).ok_or_else(|| Flaw::new(line, wanted))?;
                (Cow::Borrowed(method), Cow::Borrowed(target))
            }
            Cow::Owned(line) => {
                let (method, target) = halves(line).ok_or_else(|| Flaw::new(line, wanted))?;
                (method.to_owned().into(), target.to_owned().into())
            }
        };
        self.method.get_or_insert(method);
        self.target.get_or_insert(target);
        Ok(())
    }
}

fn halves(line: &str) -> Option<(&str, &str)> {
    let (method, rest) = line.split_at(memchr(b' ', line.as_bytes())?);
    let rest = &rest[1..];
    // A target may have spaces in it that somebody should have encoded; the version has none.
    let target = match memrchr(b' ', rest.as_bytes()) {
        Some(last) if rest[last + 1..].starts_with("HTTP/") => &rest[..last],
        _ => rest,
    };
    (!method.is_empty() && !target.is_empty()).then_some((method, target))
}

/// What stands for nothing in logs is nothing.
fn present(text: &str) -> Option<&str> {
    (!text.is_empty() && text != "-").then_some(text)
}
