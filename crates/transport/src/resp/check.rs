//! `TG.CHECK rule client [cost]`: checks one rule of the rules file for one client.

use tidegate_core::{InvalidReason, Request};
use tidegate_service::call::{Call, NamedClient};

use crate::resp::argument::{cost, text};
use crate::resp::frame::Arguments;
use crate::resp::reply::RespError;

/// Parses the arguments of the command.
///
/// The longer form, `TG.CHECK rule cost attribute value [attribute value ...]`, is for rules that count
/// by several attributes or have a limit that depends on attributes.
///
/// # Errors
/// An argument is invalid.
pub(crate) fn parse<'b>(arguments: &Arguments<'b>) -> Result<Call<'b>, RespError> {
    let rule = Some(text(&arguments[1]));
    if arguments.len() <= 4 {
        let cost = arguments.get(3).map_or(Ok(1), |argument| cost(argument))?;
        let client = text(&arguments[2]);
        let client = Some(NamedClient::Value(client));
        return Ok(Call { rule, client, request: Request::new().cost(cost) });
    }
    let mut request = Request::new().cost(cost(&arguments[2])?);
    let mut pairs = arguments.iter().skip(3);
    while let Some(name) = pairs.next() {
        let name = text(name);
        let Some(value) = pairs.next() else {
            let name = tidegate_core::quote(&name);
            return Err(RespError::invalid(format_args!(
                "attribute {name}: found no value, wanted one"
            )));
        };
        let value = text(value);
        request
            .insert(name, value)
            .map_err(|error| RespError::invalid(error).because(InvalidReason::TooLarge))?;
    }
    Ok(Call { rule, client: None, request })
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn call<'b>(words: &[&'b str]) -> Result<Call<'b>, String> {
        let words = ["TG.CHECK"].iter().chain(words);
        let arguments = words.map(|word| Cow::Borrowed(word.as_bytes())).collect();
        parse(&arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn short_form_takes_a_client_and_an_optional_cost() {
        let parsed = call(&["api", "alice", "3"]).unwrap();
        assert_eq!(parsed.rule.as_deref(), Some("api"));
        assert!(matches!(&parsed.client, Some(NamedClient::Value(client)) if client == "alice"));
        assert_eq!(parsed.request.costs(), 3);
        assert_eq!(call(&["api", "alice"]).unwrap().request.costs(), 1);
    }

    #[test]
    fn long_form_takes_attribute_pairs_after_the_cost() {
        let parsed = call(&["api", "2", "user", "alice", "path", "/a b"]).unwrap();
        assert!(parsed.client.is_none());
        assert_eq!(parsed.request.get("user"), Some("alice"));
        assert_eq!(parsed.request.get("path"), Some("/a b"));
        assert_eq!(parsed.request.costs(), 2);
    }

    #[test]
    fn invalid_argument_is_rejected_by_name() {
        for (words, wanted) in [
            (
                &["api", "alice", "-1"][..],
                r#"ERR cost: found "-1", wanted a whole number from 0 to"#,
            ),
            (&["api", "alice", "x", "y"], r#"ERR cost: found "alice", wanted"#),
            (&["api", "1", "user", "a", "b"], r#"ERR attribute "b": found no value"#),
            (&["api", "1", "", "a"], "ERR attribute name must be"),
        ] {
            let error = call(words).unwrap_err();
            assert!(error.starts_with(wanted), "{error}");
        }
    }
}
