//! HTTP messages: whole bodies, JSON trees and responses.

pub mod body;
pub mod json;
pub mod response;
