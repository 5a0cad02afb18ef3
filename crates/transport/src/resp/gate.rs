//! Who may use the door, if it has a password.

use tidegate_redis::Secret;

use super::reply::Refusal;

/// Lets clients in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gate {
    /// Of the password only a hash, whose comparison takes the same time for every guess.
    password: Option<blake3::Hash>,
}

impl Gate {
    /// Asks for the password if there is one.
    pub fn new(password: Option<&Secret>) -> Self {
        Self { password: password.map(|password| blake3::hash(password.reveal().as_bytes())) }
    }

    /// Whether everybody who reaches the door may use it.
    pub(super) fn is_open(&self) -> bool {
        self.password.is_none()
    }

    /// Lets somebody in who names a password, and perhaps a user: there is only `default`.
    ///
    /// # Errors
    /// It is another one, or there is none to be named. In the words of Redis, which clients know.
    pub(super) fn admit(&self, user: Option<&[u8]>, password: &[u8]) -> Result<(), Refusal> {
        let known = user.is_none_or(|user| user == b"default");
        let right = match self.password {
            Some(wanted) => blake3::hash(password) == wanted,
            None if user.is_none() => return Err(Refusal::error(NO_PASSWORD)),
            None => true,
        };
        if known && right { Ok(()) } else { Err(Refusal::coded("WRONGPASS", WRONG)) }
    }
}

const NO_PASSWORD: &str = "AUTH <password> called without any password configured for the default \
                           user. Are you sure your configuration is correct?";
const WRONG: &str = "invalid username-password pair or user is disabled.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_password_opens_a_door_that_has_one() {
        let gate = Gate::new(Some(&Secret::from("open sesame")));
        assert!(!gate.is_open());
        assert!(gate.admit(None, b"open sesame").is_ok());
        assert!(gate.admit(Some(b"default"), b"open sesame").is_ok());
        for (user, password) in [
            (None, &b"open"[..]),
            (None, b""),
            (None, b"open sesame "),
            (Some(&b"admin"[..]), b"open sesame"),
            (Some(b"default"), b"shut"),
        ] {
            let refusal = gate.admit(user, password).unwrap_err().to_string();
            assert!(refusal.starts_with("WRONGPASS "), "{refusal}");
        }
    }

    #[test]
    fn a_door_without_a_password_says_so() {
        let gate = Gate::new(None);
        assert!(gate.is_open());
        let refusal = gate.admit(None, b"x").unwrap_err().to_string();
        assert!(
            refusal.starts_with("ERR AUTH <password> called without any password"),
            "{refusal}"
        );
        assert!(gate.admit(Some(b"default"), b"x").is_ok());
        assert!(gate.admit(Some(b"admin"), b"x").is_err());
    }

    #[test]
    fn the_password_does_not_print() {
        let shown = format!("{:?}", Gate::new(Some(&Secret::from("open sesame"))));
        assert!(!shown.contains("sesame"), "{shown}");
    }
}
