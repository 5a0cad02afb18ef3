//! The schema has the keys that the reader knows.

use std::path::Path;

use super::*;
use crate::config::ConfigFile;

/// Stands for a list among the keys that lead somewhere.
const LIST: &str = "[]";

/// Every map of a schema whose keys are fixed, with the keys that lead to it.
fn maps<'s>(schema: &'s Schema, path: Vec<&'s str>, found: &mut Vec<(Vec<&'s str>, &'s Schema)>) {
    if schema.keys().len() > 0 {
        found.push((path.clone(), schema));
    }
    for (name, value) in schema.keys() {
        maps(value, [&path[..], &[name]].concat(), found);
    }
    if let Some(items) = schema.items() {
        maps(items, [&path[..], &[LIST]].concat(), found);
    }
}

/// The keys that the reader names when it finds one at this place that it does not know.
fn known_at(path: &[&str]) -> Vec<String> {
    let (mut open, mut close) = (String::new(), String::new());
    for key in path {
        let (before, after) =
            if *key == LIST { ("[".to_owned(), ']') } else { (format!("{{{key}: "), '}') };
        open.push_str(&before);
        close.insert(0, after);
    }
    let text = format!("{open}{{no_such_key: 1}}{close}");
    let error = ConfigFile::parse(Path::new("tidegate.yaml"), &text).unwrap_err().to_string();
    let (_, wanted) = error.split_once("there is no key \"no_such_key\", wanted ").unwrap();
    wanted.split(", ").map(str::to_owned).collect()
}

#[test]
fn the_schema_has_the_keys_that_the_reader_knows() {
    let (schema, mut found) = (schema(), Vec::new());
    maps(&schema, Vec::new(), &mut found);
    assert!(found.len() > 15, "{}", found.len());
    for (path, map) in found {
        let keys: Vec<&str> = map.keys().map(|(name, _)| name).collect();
        let mut known = known_at(&path);
        // One struct reads all places; which of them a place may be is told later.
        if path == ["identity", "session"] {
            known = vec!["cookie".to_owned(), "header".to_owned()];
        }
        assert_eq!(keys, known, "{path:?}");
    }
}
