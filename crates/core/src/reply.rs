//! A decision with the data of its response.

use crate::call_error::CallStatus;
use crate::decision::Decision;
use crate::header::{Header, HeaderStyle};
use crate::time::Timestamp;

/// A decision with its time and the style of its headers.
#[derive(Debug)]
pub struct Reply {
    /// The decision.
    pub decision: Decision,
    /// The time of the decision.
    pub at: Timestamp,
    /// The headers that report it.
    pub style: HeaderStyle,
}

impl Reply {
    /// Returns the status of the call.
    #[must_use]
    pub fn status(&self) -> CallStatus {
        CallStatus::of(self.decision.status())
    }

    /// Returns the rate-limit headers, names in lower case.
    #[must_use]
    pub fn headers(&self) -> Vec<Header> {
        self.style.headers(&self.decision, self.at)
    }

    /// Passes the name, in lower case, and the value of each rate-limit header to `visit`.
    pub fn visit_headers(&self, visit: impl FnMut(&'static str, &str)) {
        self.style.visit_headers(&self.decision, self.at, visit);
    }
}
