//! Password authentication of RESP clients.

use tidegate_redis::Secret;

use crate::resp::reply::RespError;

/// The password of the RESP listener, if it has one.
#[derive(Clone, Copy, Debug, Default)]
pub struct RespAuth {
    /// Only a hash is kept. Its comparison takes the same time for every input.
    password: Option<blake3::Hash>,
}

impl RespAuth {
    /// Returns an authenticator. Without a password every client may send commands.
    pub fn new(password: Option<&Secret>) -> Self {
        Self { password: password.map(|password| blake3::hash(password.reveal().as_bytes())) }
    }

    /// Returns `true` if clients need no password.
    pub(crate) fn allows_all(&self) -> bool {
        self.password.is_none()
    }

    /// Checks a password and an optional user name. The only user is `default`.
    ///
    /// # Errors
    /// User or password is wrong, or no password is configured. The texts are those of Redis, which client
    /// libraries recognize.
    pub(crate) fn authenticate(
        &self,
        user: Option<&[u8]>,
        password: &[u8],
    ) -> Result<(), RespError> {
        let valid_user = user.is_none_or(|user| user == b"default");
        let valid_password = match self.password {
            Some(expected) => blake3::hash(password) == expected,
            None if user.is_none() => return Err(RespError::error(NO_PASSWORD)),
            None => true,
        };
        if valid_user && valid_password {
            Ok(())
        } else {
            Err(RespError::coded("WRONGPASS", WRONG_PASSWORD))
        }
    }
}

const NO_PASSWORD: &str = "AUTH <password> called without any password configured for the default \
                           user. Are you sure your configuration is correct?";
const WRONG_PASSWORD: &str = "invalid username-password pair or user is disabled.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_configured_password_authenticates() {
        let auth = RespAuth::new(Some(&Secret::from("open sesame")));
        assert!(!auth.allows_all());
        assert!(auth.authenticate(None, b"open sesame").is_ok());
        assert!(auth.authenticate(Some(b"default"), b"open sesame").is_ok());
        for (user, password) in [
            (None, &b"open"[..]),
            (None, b""),
            (None, b"open sesame "),
            (Some(&b"admin"[..]), b"open sesame"),
            (Some(b"default"), b"shut"),
        ] {
            let error = auth.authenticate(user, password).unwrap_err().to_string();
            assert!(error.starts_with("WRONGPASS "), "{error}");
        }
    }

    #[test]
    fn auth_without_configured_password_is_rejected() {
        let auth = RespAuth::new(None);
        assert!(auth.allows_all());
        let error = auth.authenticate(None, b"x").unwrap_err().to_string();
        assert!(error.starts_with("ERR AUTH <password> called without any password"), "{error}");
        assert!(auth.authenticate(Some(b"default"), b"x").is_ok());
        assert!(auth.authenticate(Some(b"admin"), b"x").is_err());
    }

    #[test]
    fn debug_output_hides_the_password() {
        let debug = format!("{:?}", RespAuth::new(Some(&Secret::from("open sesame"))));
        assert!(!debug.contains("sesame"), "{debug}");
    }
}
