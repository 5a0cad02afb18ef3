//! HTTP messages: JSON trees and responses.

pub mod json;
pub mod response;
