//! Parses `connections` of `tidegate.yaml`.

use std::str::FromStr;

use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::config::reader::FieldReader;

/// `connections` before validation.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawConnections {
    per_client: Option<Spanned<String>>,
}

/// The maximum number of connections of one client address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PerClient {
    Off,
    Most(usize),
}

impl PerClient {
    /// Default value. Browsers open six connections, and several clients may share an address.
    pub(crate) const DEFAULT: usize = 256;
    /// Largest value.
    pub(crate) const MAX: usize = 1_000_000;

    /// Returns the number; `None` without a limit.
    pub(crate) fn most(self) -> Option<usize> {
        match self {
            Self::Off => None,
            Self::Most(number) => Some(number),
        }
    }
}

impl Default for PerClient {
    fn default() -> Self {
        Self::Most(Self::DEFAULT)
    }
}

impl FromStr for PerClient {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let number = text.replace('_', "").parse().ok();
        let number = number.filter(|number| (1..=Self::MAX).contains(number));
        let wanted = || format!("must be a whole number from 1 to {}, or off", Self::MAX);
        number.map(Self::Most).ok_or_else(|| format!("{}, found {text:?}", wanted()))
    }
}

impl RawConnections {
    /// Returns the limit of one client. Errors are added to `reader`; the default is then returned.
    pub(crate) fn resolve(self, reader: &mut FieldReader<'_>) -> PerClient {
        reader.parsed("connections.per_client", self.per_client).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_a_number_or_off() {
        assert_eq!("off".parse::<PerClient>().unwrap().most(), None);
        assert_eq!("1_000".parse::<PerClient>().unwrap().most(), Some(1_000));
        assert_eq!(PerClient::default().most(), Some(256));
        for invalid in ["0", "-1", "many", "1000001", ""] {
            let error = invalid.parse::<PerClient>().unwrap_err();
            let wanted = "must be a whole number from 1 to 1000000, or off";
            assert_eq!(error, format!("{wanted}, found {invalid:?}"));
        }
    }
}
