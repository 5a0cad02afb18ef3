//! What can be written in rules and in `tidegate.yaml`, for editors and for people.
//!
//! The schemas are made from what reads those files; the pages are made from the schemas. What is
//! committed under `docs/reference` is all of it, and a test fails when it is not what is made here.

mod page;

use clap::ValueEnum;
use tidegate_rules::RuleSet;
use tidegate_rules::schema::Schema;

use crate::config::schema;

/// What a schema is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Subject {
    /// Files of rules
    Rules,
    /// Configurations, tidegate.yaml
    Config,
}

impl Subject {
    pub(crate) fn schema(self) -> Schema {
        match self {
            Self::Rules => RuleSet::schema(),
            Self::Config => schema::schema(),
        }
    }
}

#[cfg(test)]
mod tests;
