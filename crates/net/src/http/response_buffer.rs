//! HTTP/1.1 responses, encoded without hyper.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, UNIX_EPOCH};

use hyper::body::Body as _;
use hyper::header::{CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};
use tidegate_core::{Reply, Timestamp};

use super::response::{self, Body};

/// Encoded responses that are not sent yet. Their bytes are those that hyper would send.
#[derive(Debug, Default)]
pub struct ResponseBuffer {
    bytes: Vec<u8>,
    /// The body of the current response. Its length is part of the head.
    body: Vec<u8>,
    date: DateText,
}

impl ResponseBuffer {
    /// Returns the bytes of all responses.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Appends the response to one check, as [`response::reply`] returns it.
    pub fn push_reply(&mut self, reply: &Reply) {
        self.body.clear();
        let is_problem = match response::write_reply_body(&mut self.body, reply) {
            Ok(is_problem) => is_problem,
            Err(_) => return self.push(&mut response::reply(reply), reply.at),
        };
        let status = StatusCode::from_u16(reply.status().http());
        self.push_status(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR));
        let kind = if is_problem { response::PROBLEM } else { response::JSON };
        self.push_header(&CONTENT_TYPE, kind.as_bytes());
        reply.visit_headers(|name, value| push_line(&mut self.bytes, name, value.as_bytes()));
        self.push_end(reply.at);
    }

    /// Appends any response, with the time that its `Date` has.
    pub fn push(&mut self, response: &mut Response<Body>, at: Timestamp) {
        self.body.clear();
        // The body is in memory, so that it is ready at once.
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(Ok(frame))) =
            Pin::new(response.body_mut()).poll_frame(&mut context)
        {
            self.body.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        }
        self.push_status(response.status());
        for (name, value) in response.headers() {
            self.push_header(name, value.as_bytes());
        }
        self.push_end(at);
    }

    fn push_status(&mut self, status: StatusCode) {
        self.bytes.extend_from_slice(b"HTTP/1.1 ");
        self.bytes.extend_from_slice(status.as_str().as_bytes());
        self.bytes.push(b' ');
        let reason = status.canonical_reason().unwrap_or("<none>");
        self.bytes.extend_from_slice(reason.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn push_header(&mut self, name: &HeaderName, value: &[u8]) {
        push_line(&mut self.bytes, name.as_str(), value);
    }

    /// Appends the last headers and the body.
    fn push_end(&mut self, at: Timestamp) {
        self.push_header(&X_CONTENT_TYPE_OPTIONS, response::NOSNIFF.as_bytes());
        let mut length = itoa::Buffer::new();
        push_line(&mut self.bytes, "content-length", length.format(self.body.len()).as_bytes());
        push_line(&mut self.bytes, "date", self.date.at(at));
        self.bytes.extend_from_slice(b"\r\n");
        self.bytes.extend_from_slice(&self.body);
    }
}

fn push_line(bytes: &mut Vec<u8>, name: &str, value: &[u8]) {
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(b": ");
    bytes.extend_from_slice(value);
    bytes.extend_from_slice(b"\r\n");
}

/// The text of a `Date` header, formatted once per second.
#[derive(Debug, Default)]
struct DateText {
    second: u64,
    text: String,
}

impl DateText {
    fn at(&mut self, time: Timestamp) -> &[u8] {
        let second = time.as_micros() / 1_000_000;
        if second != self.second || self.text.is_empty() {
            self.second = second;
            self.text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
        }
        self.text.as_bytes()
    }
}
