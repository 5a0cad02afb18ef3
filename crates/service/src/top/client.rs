//! The identity of a client that may be shown: its subject in the block list, and its name unless that is a secret.

use std::borrow::Cow;

use tidegate_core::Request;
use tidegate_limiter::BlockList;
use tidegate_limiter::block::Subject;
use tidegate_rules::{ClientName, Rule};

/// The identity of a client of one rule. It contains no value that may be a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The subject of the client in the block list.
    pub(crate) subject: Subject,
    /// The values that the rule counts by; `None` if they may be secret.
    pub name: Option<ClientName>,
}

impl ClientIdentity {
    /// Returns the client that a rule counts a request for. `None` if the rule has one bucket for all clients, or the
    /// request lacks an attribute.
    pub fn new(rule: &Rule, request: &Request<'_>, blocks: &BlockList) -> Option<Self> {
        let subject = blocks.client_of(rule, request)?;
        Some(Self { subject, name: ClientName::of(rule, request) })
    }

    /// Returns its id in the block list: `192.0.2.7/32`, `user#9f86…`.
    pub fn id(&self) -> String {
        self.subject.to_string()
    }
}

/// Parses the id of a client, the reverse of [`ClientIdentity::id`].
///
/// The client need not exist. Returns `None` for other texts, also for networks.
pub fn parse_client_id(id: &str) -> Option<Subject> {
    const DIGITS: usize = 32;
    let (names, digits) = id.rsplit_once('#')?;
    let hex = digits.len() == DIGITS
        && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let digest = u128::from_str_radix(digits, 16).ok().filter(|_| hex)?.to_be_bytes();
    let attributes: Vec<Cow<'_, str>> = names.split('+').map(Cow::from).collect();
    let sorted = attributes.is_sorted_by(|one, next| one < next);
    let named = attributes.iter().all(|name| {
        (1..=Request::MAX_NAME).contains(&name.len()) && !name.contains(char::is_control)
    });
    if !sorted || !named || attributes.len() > Subject::MAX_ATTRIBUTES {
        return None;
    }
    let attributes = attributes.into_iter().map(|name| name.as_ref().into()).collect();
    Some(Subject::Client { attributes, digest })
}

#[cfg(test)]
mod tests {
    use tidegate_rules::RuleSet;

    use super::*;

    fn client(per: &str, attributes: &[(&str, &str)]) -> Option<ClientIdentity> {
        let yaml = format!("rules: [{{name: a, limit: 1/s, per: {per}}}]");
        let rules = RuleSet::parse("", &yaml).unwrap();
        let mut request = Request::new();
        for (name, value) in attributes {
            request.insert(*name, *value).unwrap();
        }
        ClientIdentity::new(&rules.rules()[0], &request, &BlockList::new([7; 32]))
    }

    fn json(client: &ClientIdentity) -> String {
        serde_json::to_string(&client.name).unwrap()
    }

    #[test]
    fn client_name_has_the_form_of_a_check() {
        let by_ip = client("[ip]", &[("ip", "192.0.2.7")]).unwrap();
        assert_eq!((&*by_ip.id(), &*json(&by_ip)), ("192.0.2.7/32", r#""192.0.2.7""#));
        let second = client("[user | ip]", &[("ip", "192.0.2.7")]).unwrap();
        assert_eq!(json(&second), r#"{"ip":"192.0.2.7"}"#);
        let both = client("[ip, path]", &[("ip", "192.0.2.7"), ("path", "/a\"")]).unwrap();
        assert_eq!(json(&both), r#"{"ip":"192.0.2.7","path":"/a\""}"#);
    }

    #[test]
    fn name_with_one_secret_is_hidden() {
        let secret = client("[api_key]", &[("api_key", "sk-live-1")]).unwrap();
        assert_eq!(json(&secret), "null");
        assert!(!format!("{secret:?}").contains("sk-live"), "{secret:?}");
        let half = client("[ip, user]", &[("ip", "192.0.2.7"), ("user", "alice")]).unwrap();
        assert_eq!(json(&half), "null");
        assert!(half.id().starts_with("ip+user#"), "{}", half.id());
    }

    #[test]
    fn shared_bucket_and_missing_attribute_have_no_client() {
        assert_eq!(client("[]", &[("ip", "192.0.2.7")]), None);
        assert_eq!(client("[user]", &[("ip", "192.0.2.7")]), None);
    }

    #[test]
    fn id_is_parsed_back_to_the_subject() {
        for client in [
            client("[api_key]", &[("api_key", "sk-live-1")]).unwrap(),
            client("[user, ip, path]", &[("ip", "::1"), ("user", "a"), ("path", "/")]).unwrap(),
        ] {
            assert_eq!(parse_client_id(&client.id()), Some(client.subject));
        }
        let zeros = "0".repeat(32);
        for id in [
            "192.0.2.7/32".to_owned(),
            format!("#{zeros}"),
            format!("b+a#{zeros}"),
            format!("a+a#{zeros}"),
            format!("a#{}", "0".repeat(31)),
            format!("a#+{}", "0".repeat(31)),
            format!("a#{}", "F".repeat(32)),
            format!("a\n#{zeros}"),
        ] {
            assert_eq!(parse_client_id(&id), None, "{id}");
        }
    }
}
