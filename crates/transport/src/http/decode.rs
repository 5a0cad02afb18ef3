//! From a body to calls.

use std::borrow::Cow;

use tidegate_core::{CallError, Request, RequestError, truncate};
use tidegate_net::http::json::{Json, fields, text};
use tidegate_service::call::{Call, NamedClient};

/// Most checks of one batch.
pub(super) const MAX_CHECKS: usize = 1_000;

const CHECK: &str = "rule, client, attributes or cost";

/// Reads `{"rule": …, "client": …, "cost": …}` or `{"attributes": {…}, "cost": …}`.
pub(super) fn check(json: Json<'_>) -> Result<Call<'_>, CallError> {
    let [rule, client, attributes, cost] =
        fields(json, ["rule", "client", "attributes", "cost"], CHECK)?;
    if rule.is_none() && attributes.is_none() {
        return Err(CallError::invalid("body", "neither rule nor attributes", "one of them"));
    }
    let mut request = Request::new();
    if let Some(attributes) = attributes {
        for (name, value) in texts("attributes", attributes)? {
            if request.get(&name).is_some() {
                let place = format!("attributes.{}", truncate(&name));
                return Err(CallError::invalid(place, "it twice", "it once"));
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
            Some(json) => request.cost(whole("cost", &json)?),
            None => request,
        },
    })
}

/// Reads `{"checks": […]}`: the items, still unread.
pub(super) fn batch(json: Json<'_>) -> Result<Vec<Json<'_>>, CallError> {
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

/// Reads `{"slot": …}`.
pub(super) fn slot(json: Json<'_>) -> Result<Cow<'_, str>, CallError> {
    let [slot] = fields(json, ["slot"], "slot")?;
    let slot =
        slot.ok_or_else(|| CallError::invalid("slot", "nothing", "the slot of an acquire"))?;
    text("slot", slot)
}

/// Parses a whole number.
pub fn whole(place: &str, json: &Json<'_>) -> Result<u64, CallError> {
    match json {
        Json::Whole(number) => Ok(*number),
        other => {
            let wanted = format!("a whole number from 0 to {}", u64::MAX);
            Err(CallError::invalid(place, other.shown(), wanted))
        }
    }
}

type Texts<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

fn texts<'a>(place: &str, json: Json<'a>) -> Result<Texts<'a>, CallError> {
    let Json::Object(entries) = json else {
        return Err(CallError::invalid(place, json.shown(), "an object of texts"));
    };
    let texts = entries.into_iter().map(|(name, value)| match value {
        Json::Text(value) => Ok((name, value)),
        other => {
            Err(CallError::invalid(format!("{place}.{}", truncate(&name)), other.shown(), "a text"))
        }
    });
    texts.collect()
}

/// Parses a client: a rule and the values that identify the client.
pub fn named_client(json: Json<'_>) -> Result<NamedClient<'_>, CallError> {
    match json {
        Json::Text(value) => Ok(NamedClient::Value(value)),
        Json::Object(_) => texts("client", json).map(NamedClient::Parts),
        other => Err(CallError::invalid("client", other.shown(), "a text or an object of texts")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bodies that are nearly calls.
    fn nearly_a_call() -> impl Strategy<Value = Vec<u8>> {
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
        fn whatever_is_sent_is_a_call_or_a_short_explanation(body in nearly_a_call()) {
            let read = [
                Json::read(&body).and_then(check).map(drop),
                Json::read(&body).and_then(batch).map(drop),
                Json::read(&body).and_then(slot).map(drop),
            ];
            for fault in read.into_iter().filter_map(Result::err) {
                prop_assert!(fault.to_string().len() < 1_000, "{}", fault);
                prop_assert!(!fault.path.is_empty());
            }
        }
    }
}
