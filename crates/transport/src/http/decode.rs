//! Decodes JSON bodies into calls.

use std::borrow::Cow;

use tidegate_core::{CallError, Request, RequestError, truncate};
use tidegate_net::http::json::{Json, fields, text};
use tidegate_service::call::{Call, NamedClient};

/// Largest number of checks in one batch.
pub(crate) const MAX_CHECKS: usize = 1_000;

const CHECK_FIELDS: &str = "rule, client, attributes or cost";

/// Parses `{"rule": …, "client": …, "cost": …}` or `{"attributes": {…}, "cost": …}`.
pub(crate) fn check(json: Json<'_>) -> Result<Call<'_>, CallError> {
    let [rule, client, attributes, cost] =
        fields(json, ["rule", "client", "attributes", "cost"], CHECK_FIELDS)?;
    if rule.is_none() && attributes.is_none() {
        return Err(CallError::invalid("body", "neither rule nor attributes", "one of them"));
    }
    let mut request = Request::new();
    if let Some(attributes) = attributes {
        for (name, value) in text_pairs("attributes", attributes)? {
            if request.get(&name).is_some() {
                let path = format!("attributes.{}", truncate(&name));
                return Err(CallError::invalid(path, "it twice", "it once"));
            }
            request.insert(name, value).map_err(|error| match &error {
                RequestError::Value { name, .. } => {
                    CallError::rejected_attribute(&format!("attributes.{}", truncate(name)), &error)
                }
                _ => CallError::rejected_attribute("attributes", &error),
            })?;
        }
    }
    Ok(Call {
        rule: rule.map(|json| text("rule", json)).transpose()?,
        client: client.map(named_client).transpose()?,
        request: match cost {
            Some(json) => request.cost(whole_number("cost", &json)?),
            None => request,
        },
    })
}

/// Parses `{"checks": […]}` into its items, which are not decoded yet.
pub(crate) fn batch(json: Json<'_>) -> Result<Vec<Json<'_>>, CallError> {
    let [checks] = fields(json, ["checks"], "checks")?;
    let wanted = || format!("a list of at most {MAX_CHECKS} checks");
    match checks {
        Some(Json::List(items)) if items.len() <= MAX_CHECKS => Ok(items),
        Some(Json::List(items)) => {
            Err(CallError::invalid("checks", format!("{} checks", items.len()), wanted()))
        }
        Some(other) => Err(CallError::invalid("checks", other.shown(), wanted())),
        None => Err(CallError::invalid("checks", "nothing", wanted())),
    }
}

/// Parses `{"slot": …}`.
pub(crate) fn slot(json: Json<'_>) -> Result<Cow<'_, str>, CallError> {
    let [slot] = fields(json, ["slot"], "slot")?;
    let slot =
        slot.ok_or_else(|| CallError::invalid("slot", "nothing", "the slot of an acquire"))?;
    text("slot", slot)
}

/// Parses a whole number.
pub fn whole_number(path: &str, json: &Json<'_>) -> Result<u64, CallError> {
    match json {
        Json::Whole(number) => Ok(*number),
        other => {
            let wanted = format!("a whole number from 0 to {}", u64::MAX);
            Err(CallError::invalid(path, other.shown(), wanted))
        }
    }
}

/// Pairs of an attribute name and its value.
type TextPairs<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// Parses an object in which every value is a text.
fn text_pairs<'a>(path: &str, json: Json<'a>) -> Result<TextPairs<'a>, CallError> {
    let Json::Object(entries) = json else {
        return Err(CallError::invalid(path, json.shown(), "an object of texts"));
    };
    let pairs = entries.into_iter().map(|(name, value)| match value {
        Json::Text(value) => Ok((name, value)),
        other => {
            Err(CallError::invalid(format!("{path}.{}", truncate(&name)), other.shown(), "a text"))
        }
    });
    pairs.collect()
}

/// Parses a client: a rule and the values that identify the client.
pub fn named_client(json: Json<'_>) -> Result<NamedClient<'_>, CallError> {
    match json {
        Json::Text(value) => Ok(NamedClient::Value(value)),
        Json::Object(_) => text_pairs("client", json).map(NamedClient::Parts),
        other => Err(CallError::invalid("client", other.shown(), "a text or an object of texts")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Generates bodies that resemble calls.
    fn call_like_body() -> impl Strategy<Value = Vec<u8>> {
        let words = [
            "{",
            "}",
            "[",
            "]",
            ":",
            ",",
            "\"rule\"",
            "\"client\"",
            "\"attributes\"",
            "\"cost\"",
            "\"checks\"",
            "\"slot\"",
            "\"\"",
            "\"\\ud800\"",
            "\"é\"",
            "0",
            "-1",
            "1e999",
            "18446744073709551616",
            "null",
            "true",
            " ",
        ];
        let word = prop_oneof![
            20 => proptest::sample::select(words.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
            1 => proptest::collection::vec(any::<u8>(), 0..4),
        ];
        proptest::collection::vec(word, 0..40).prop_map(|words| words.concat())
    }

    proptest! {
        #[test]
        fn any_body_is_decoded_or_rejected_with_a_short_error(body in call_like_body()) {
            let results = [
                Json::read(&body).and_then(check).map(drop),
                Json::read(&body).and_then(batch).map(drop),
                Json::read(&body).and_then(slot).map(drop),
            ];
            for error in results.into_iter().filter_map(Result::err) {
                prop_assert!(error.to_string().len() < 1_000, "{}", error);
                prop_assert!(!error.path.is_empty());
            }
        }
    }
}
