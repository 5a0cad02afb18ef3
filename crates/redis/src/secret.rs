//! Passwords, which never appear in a log.

use std::fmt;

/// A password. Printing it in any way prints `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

impl Secret {
    /// The password itself, for the one place that sends it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl<T: Into<Box<str>>> From<T> for Secret {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The key of the hashes of all nodes of a fleet; zeros when they share no secret.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FleetSecret([u8; 32]);

impl FleetSecret {
    /// The key that stands for a text of any length: equal texts give equal keys.
    pub(crate) fn derive(text: &str) -> Self {
        // Changing the context would part the nodes of a fleet: each release would count alone.
        Self(blake3::derive_key("tidegate 2026 fleet secret for keys in redis", text.as_bytes()))
    }

    pub(crate) fn bytes(self) -> [u8; 32] {
        self.0
    }
}

impl fmt::Debug for FleetSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print() {
        let secret = Secret::from("hunter2");
        assert_eq!(format!("{secret} {secret:?} {:?}", Some(&secret)), "*** *** Some(***)");
        assert_eq!(format!("{:?}", FleetSecret::derive("hunter2")), "***");
        assert_eq!(secret.reveal(), "hunter2");
    }

    #[test]
    fn a_fleet_derives_the_same_key_in_every_release() {
        let key = FleetSecret::derive("correct horse battery staple").bytes();
        assert_eq!(&key[..4], &[182, 173, 74, 112]);
        assert_ne!(key, FleetSecret::derive("correct horse battery stapl").bytes());
        assert_eq!(FleetSecret::default().bytes(), [0; 32]);
    }
}
