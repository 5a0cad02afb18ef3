//! The reference of rules and of `tidegate.yaml`: JSON Schemas for editors, and pages.
//!
//! The pages are generated from the schemas. Both are committed under `docs/reference`, and a test fails when they are
//! stale.

mod page;

use clap::ValueEnum;
use tidegate_rules::RuleSet;
use tidegate_rules::schema::Schema;

use crate::config::schema;

/// The kind of file that a schema describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaKind {
    /// A file of rules
    Rules,
    /// A configuration, tidegate.yaml
    Config,
}

impl SchemaKind {
    /// Returns the JSON Schema.
    pub(crate) fn schema(self) -> Schema {
        match self {
            Self::Rules => RuleSet::schema(),
            Self::Config => schema::schema(),
        }
    }
}

#[cfg(test)]
mod tests;
