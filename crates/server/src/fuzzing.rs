//! What fuzz targets reach, and nobody else should.

/// The RESP door.
pub mod resp {
    /// What a Redis client is replied that sends these pieces, where `+ASKED` stands for a decision.
    #[must_use]
    pub fn replies(pieces: &[&[u8]]) -> Vec<u8> {
        crate::transport::resp::rehearse(pieces)
    }
}
