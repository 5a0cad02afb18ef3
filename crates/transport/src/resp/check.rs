//! `TG.CHECK rule client [cost]`: one rule of the rules file, for one client.

use tidegate_core::Request;
use tidegate_service::call::{Call, NamedClient};

use crate::resp::argument::{cost, text};
use crate::resp::frame::Arguments;
use crate::resp::reply::Refusal;

/// Reads what follows the name of the command.
///
/// The longer form, `TG.CHECK rule cost attribute value [attribute value ...]`, is for rules that count
/// by several attributes or whose limit depends on some.
///
/// # Errors
/// One of the arguments is not what it must be.
pub(super) fn read<'b>(mut arguments: Arguments<'b>) -> Result<Call<'b>, Refusal> {
    let rule = Some(text("rule", std::mem::take(&mut arguments[1]))?);
    if arguments.len() <= 4 {
        let price = arguments.get(3).map_or(Ok(1), |price| cost(price))?;
        let client = text("client", std::mem::take(&mut arguments[2]))?;
        let client = Some(NamedClient::Value(client));
        return Ok(Call { rule, client, request: Request::new().cost(price) });
    }
    let mut request = Request::new().cost(cost(&arguments[2])?);
    let mut pairs = arguments.into_iter().skip(3);
    while let Some(name) = pairs.next() {
        let name = text("attribute", name)?;
        let Some(value) = pairs.next() else {
            let name = tidegate_core::quote(&name);
            return Err(Refusal::error(format_args!(
                "attribute {name}: found no value, wanted one"
            )));
        };
        let value = text("value", value)?;
        request.insert(name, value).map_err(Refusal::error)?;
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
        read(arguments).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn a_client_is_the_value_that_the_rule_counts_by() {
        let read = call(&["api", "alice", "3"]).unwrap();
        assert_eq!(read.rule.as_deref(), Some("api"));
        assert!(matches!(&read.client, Some(NamedClient::Value(client)) if client == "alice"));
        assert_eq!(read.request.costs(), 3);
        assert_eq!(call(&["api", "alice"]).unwrap().request.costs(), 1);
    }

    #[test]
    fn attributes_come_in_pairs_after_the_cost() {
        let read = call(&["api", "2", "user", "alice", "path", "/a b"]).unwrap();
        assert!(read.client.is_none());
        assert_eq!(read.request.get("user"), Some("alice"));
        assert_eq!(read.request.get("path"), Some("/a b"));
        assert_eq!(read.request.costs(), 2);
    }

    #[test]
    fn what_is_wrong_is_refused_by_name() {
        for (words, wanted) in [
            (
                &["api", "alice", "-1"][..],
                r#"ERR cost: found "-1", wanted a whole number from 0 to"#,
            ),
            (&["api", "alice", "x", "y"], r#"ERR cost: found "alice", wanted"#),
            (&["api", "1", "user", "a", "b"], r#"ERR attribute "b": found no value"#),
            (&["api", "1", "", "a"], "ERR attribute name must be"),
        ] {
            let refusal = call(words).unwrap_err();
            assert!(refusal.starts_with(wanted), "{refusal}");
        }
    }
}
