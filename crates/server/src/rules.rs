//! Rules that come from elsewhere than our own rules file.

pub(crate) mod envoy;
