//! HTTP messages: JSON trees, responses, and the check of requests that web pages send.

pub mod json;
pub mod page_guard;
pub mod response;
