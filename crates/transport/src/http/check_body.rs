//! The body of a check, decoded without a JSON tree.
//!
//! The tree exists to explain errors. A body that is valid in the common form, texts and a whole number, needs none.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use tidegate_core::{Request, escape_text};
use tidegate_net::http::json::TextSeed;
use tidegate_service::call::{Call, NamedClient};

/// Decodes a valid body in the common form. Returns `None` for any other body; the tree decodes it or has its error.
pub(crate) fn decode(body: &[u8]) -> Option<Call<'_>> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let call = reader.deserialize_map(CallVisitor).ok()?;
    reader.end().ok()?;
    (call.rule.is_some() || call.request.attributes().next().is_some()).then_some(call)
}

struct CallVisitor;

impl<'de> Visitor<'de> for CallVisitor {
    type Value = Call<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Call<'de>, A::Error> {
        let (mut rule, mut client, mut cost) = (None, None, None);
        let mut request = Request::new();
        let mut has_attributes = false;
        while let Some(name) = map.next_key_seed(TextSeed)? {
            match &*name {
                "rule" if rule.is_none() => rule = Some(map.next_value_seed(TextSeed)?),
                "client" if client.is_none() => client = Some(map.next_value_seed(TextSeed)?),
                "cost" if cost.is_none() => cost = Some(map.next_value::<u64>()?),
                "attributes" if !has_attributes => {
                    has_attributes = true;
                    map.next_value_seed(AttributesSeed(&mut request))?;
                }
                _ => return Err(A::Error::custom("an unknown or repeated field")),
            }
        }
        let client = client.map(|client| NamedClient::Value(escape_text(client)));
        let request = request.cost(cost.unwrap_or(1));
        Ok(Call { rule, client, request })
    }
}

/// Adds the members of an object of texts to a request.
struct AttributesSeed<'r, 'de>(&'r mut Request<'de>);

impl<'de> DeserializeSeed<'de> for AttributesSeed<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for AttributesSeed<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key_seed(TextSeed)? {
            if self.0.get(&name).is_some() {
                return Err(A::Error::custom("a repeated attribute"));
            }
            let value = map.next_value_seed(TextSeed)?;
            self.0.insert(name, escape_text(value)).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_net::http::json::Json;

    use super::*;
    use crate::http::decode_check;

    /// Bodies near the common form: known and unknown fields in any order, repeated or of another type.
    fn body() -> impl Strategy<Value = String> {
        let value = prop_oneof![
            6 => "\"([a-z]{0,3}|\\\\u00e9|\\\\n|é|%41|\\\\\\\\xFF)\"",
            2 => "-?[0-9]{1,20}|1\\.0|1e2",
            1 => Just("null".to_owned()),
            1 => Just("[\"a\"]".to_owned()),
            2 => "\\{(\"[a-c]\": ?\"[a-z]{0,2}\"(, ?\"[a-c]\":(\"x\"|1))?)?\\}",
        ];
        let name = prop_oneof![
            4 => Just("rule"), 4 => Just("client"), 4 => Just("cost"), 4 => Just("attributes"), 1 => Just("other"), 1 => Just(""),
        ];
        let object = proptest::collection::vec((name, value), 0..4).prop_map(|members| {
            let members = members.iter().map(|(name, value)| format!("\"{name}\": {value}"));
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        });
        prop_oneof![8 => object, 1 => "[\\[{}\\]\":a0 ,]{0,8}"]
    }

    proptest! {
        #[test]
        fn decoded_bodies_are_those_of_the_tree(body in body()) {
            let tree = Json::read(body.as_bytes()).and_then(decode_check);
            if let Some(call) = decode(body.as_bytes()) {
                prop_assert_eq!(format!("{call:?}"), format!("{:?}", tree.unwrap()), "{}", body);
            }
        }
    }

    #[test]
    fn common_bodies_need_no_tree() {
        for body in [
            r#"{"rule":"api","client":"alice"}"#,
            r#" {"cost": 3, "rule": "api", "client": "al\u0069ce"} "#,
            r#"{"attributes":{"user":"alice","path":"/v1"},"cost":0}"#,
        ] {
            assert!(decode(body.as_bytes()).is_some(), "{body}");
        }
    }
}
