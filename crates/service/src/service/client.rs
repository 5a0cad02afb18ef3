//! Who comes, for calls that name a rule.

use std::borrow::Cow;

use tidegate_core::{CallError, Request, truncate};
use tidegate_rules::{Chain, Rule};

/// Who comes, for a call that names a rule.
#[derive(Debug)]
pub enum Client<'a> {
    /// The value of the first alternative of the rule's only `per` entry.
    Value(Cow<'a, str>),
    /// Attributes that the rule counts by, one for each `per` entry.
    Parts(Vec<(Cow<'a, str>, Cow<'a, str>)>),
}

/// The request as the rule sees it: its client under the names of the attributes it counts by.
///
/// Naming a client this way meets the same bucket as a request that carries the attributes.
pub fn addressed<'r, 'c: 'r>(
    rule: &'r Rule,
    client: Option<Client<'c>>,
    request: Request<'c>,
) -> Result<Request<'r>, CallError> {
    let mut named = Request::new().cost(request.costs());
    match client {
        None if rule.per().is_empty() || request.attributes().next().is_some() => {
            return Ok(request.within());
        }
        None => return Err(CallError::invalid("client", "nothing", wanted_client(rule))),
        Some(Client::Value(value)) => match rule.per() {
            // One bucket for all: whoever comes, it is the same.
            [] => {}
            [chain] => {
                let first = chain.attributes().next().unwrap_or_default();
                insert(&mut named, "client", first, value)?;
            }
            _ => return Err(CallError::invalid("client", "a text", wanted_client(rule))),
        },
        Some(Client::Parts(parts)) => {
            for (name, value) in parts {
                let known = rule
                    .per()
                    .iter()
                    .any(|chain| chain.attributes().any(|attribute| attribute == name));
                let place = || format!("client.{}", truncate(&name));
                if !known {
                    return Err(CallError::invalid(place(), "a value", wanted_client(rule)));
                }
                if named.get(&name).is_some() {
                    return Err(CallError::invalid(place(), "it twice", "it once"));
                }
                let place = place();
                insert(&mut named, &place, name, value)?;
            }
            if rule.per().iter().any(|chain| chain.pick(&named).is_none()) {
                return Err(CallError::invalid("client", "too little", wanted_client(rule)));
            }
        }
    }
    for (name, value) in request.attributes() {
        let place = format!("attributes.{}", truncate(name));
        if named.get(name).is_some() {
            return Err(CallError::invalid(
                place,
                "another value",
                "none, because client names it",
            ));
        }
        insert(&mut named, &place, name.to_owned(), value.to_owned())?;
    }
    Ok(named)
}

pub(super) fn insert<'a>(
    request: &mut Request<'a>,
    place: &str,
    name: impl Into<Cow<'a, str>>,
    value: impl Into<Cow<'a, str>>,
) -> Result<(), CallError> {
    request.insert(name, value).map_err(|error| CallError::rejected_attribute(place, &error))
}

/// `the value of api_key`, or `an object with values for user | ip and path`.
fn wanted_client(rule: &Rule) -> String {
    match rule.per() {
        [] => format!("none, because rule {:?} has one bucket for all", rule.name()),
        [chain] if chain.attributes().len() == 1 => {
            format!("the value of {chain}, by which rule {:?} counts", rule.name())
        }
        chains => {
            let names: Vec<&str> = chains.iter().map(Chain::as_str).collect();
            let names = names.join(" and ");
            format!("an object with {names}, by which rule {:?} counts", rule.name())
        }
    }
}
