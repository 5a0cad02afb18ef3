//! The schema has the keys that the parser accepts.

use std::path::Path;

use super::*;
use crate::config::ConfigFile;

/// Stands for a list in the path of a key.
const LIST: &str = "[]";

/// Collects every map with fixed keys, and its path.
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

/// Returns the keys that the parser lists when it finds an unknown key at this path.
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
fn schema_has_the_keys_that_the_parser_accepts() {
    let (schema, mut found) = (schema(), Vec::new());
    maps(&schema, Vec::new(), &mut found);
    assert!(found.len() > 15, "{}", found.len());
    for (path, map) in found {
        let keys: Vec<&str> = map.keys().map(|(name, _)| name).collect();
        let mut known = known_at(&path);
        // One struct reads all lookups; `query` of a session is rejected later.
        if path == ["identity", "session"] {
            known = vec!["cookie".to_owned(), "header".to_owned()];
        }
        assert_eq!(keys, known, "{path:?}");
    }
}
