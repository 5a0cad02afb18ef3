//! The committed reference is what is made here, and agrees with what reads the files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jsonschema::Validator;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::config::ConfigFile;

const EDITORS: &str =
    "Editors that know JSON Schema complete and check these files, when the first line of one is";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference")
}

fn files() -> [(&'static str, String); 4] {
    let (rules, config) = (Subject::Rules.schema(), Subject::Config.schema());
    let intro = |file: &str, more: &str| {
        let schema = format!(
            "https://raw.githubusercontent.com/tidegate/tidegate/main/docs/reference/{file}"
        );
        let served = format!(
            "A server has the same at `/v1/schema/{}` on its admin listener",
            file.replace(".schema", "")
        );
        format!(
            "{EDITORS}\n\n```yaml\n# yaml-language-server: $schema={schema}\n```\n\n{served}, and \
             `tidegate validate --schema {}` prints it. This page is made of it (`make reference`). {more}",
            file.split('.').next().unwrap_or_default()
        )
    };
    let rules_more = "[The guide](../guide/rules.md) says it with examples.";
    let config_more = "The parts of a rule are [on their own page](rules.md).";
    [
        ("rules.schema.json", rules.to_json()),
        ("config.schema.json", config.to_json()),
        ("rules.md", page::page("Rules", &rules, &intro("rules.schema.json", rules_more), true)),
        (
            "config.md",
            page::page("tidegate.yaml", &config, &intro("config.schema.json", config_more), false),
        ),
    ]
}

#[test]
fn the_committed_reference_is_not_stale() {
    let write = std::env::var_os("TIDEGATE_REFERENCE").is_some_and(|value| value == "write");
    for (name, made) in files() {
        let path = folder().join(name);
        if write {
            std::fs::create_dir_all(folder()).unwrap();
            std::fs::write(&path, &made).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == made, "docs/reference/{name} is stale: make reference");
    }
}

fn validator(subject: Subject) -> Validator {
    let schema: Value = serde_json::from_str(&subject.schema().to_json()).unwrap();
    jsonschema::draft202012::meta::validate(&schema).unwrap();
    jsonschema::draft202012::new(&schema).unwrap()
}

/// Visits a schema and everything in it.
fn each<'s>(schema: &'s Schema, place: &str, visit: &mut impl FnMut(&str, &'s Schema)) {
    visit(place, schema);
    let inner = schema.keys().chain(schema.parts());
    inner.for_each(|(name, inner)| each(inner, &format!("{place}.{name}"), visit));
    let unnamed = schema.others().into_iter().chain(schema.items()).chain(schema.choices());
    unnamed.for_each(|inner| each(inner, place, visit));
}

#[test]
fn every_key_says_what_it_is_for_and_has_an_example_that_fits() {
    for subject in [Subject::Rules, Subject::Config] {
        let schema = subject.schema();
        let whole: Value = serde_json::from_str(&schema.to_json()).unwrap();
        each(&schema, "", &mut |place, schema| {
            for (name, key) in schema.keys() {
                assert!(key.about().ends_with('.'), "{place}.{name}: {:?}", key.about());
                assert!(!key.examples().is_empty(), "{place}.{name} has no example");
            }
            let mut alone: Value = serde_json::to_value(schema).unwrap();
            alone["$defs"] = whole["$defs"].clone();
            let validator = jsonschema::draft202012::new(&alone).unwrap();
            for example in schema.examples().iter().chain(schema.default_value()) {
                assert!(validator.is_valid(example), "{place}: {example}");
            }
        });
    }
}

/// A YAML text as an editor understands it: `off` is a word there.
fn read(text: &str) -> Value {
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).unwrap()
}

fn assert_fits(validator: &Validator, what: &str, text: &str) {
    let document = read(text);
    let errors: Vec<String> = validator
        .iter_errors(&document)
        .map(|error| format!("{} at {}", error, error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{what}: {errors:#?}\n{text}");
}

/// The YAML blocks of the guide, and the files that are there to be copied.
fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    let mut waiting =
        vec![root.join("docs/guide"), root.join("deploy"), root.join("fuzz/seeds/rules")];
    while let Some(folder) = waiting.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.display().to_string();
            match path.extension().and_then(|kind| kind.to_str()) {
                _ if path.is_dir() => waiting.push(path),
                Some("md") => {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let blocks = text.split("```yaml\n").skip(1);
                    let blocks = blocks.filter_map(|rest| rest.split("```").next());
                    found.extend(blocks.map(|block| (name.clone(), block.to_owned())));
                }
                Some("yaml") => found.push((name, std::fs::read_to_string(&path).unwrap())),
                _ => {}
            }
        }
    }
    found
}

#[test]
fn whatever_is_shown_or_shipped_fits_the_schemas() {
    let (rules, config) = (validator(Subject::Rules), validator(Subject::Config));
    let mut seen = [0, 0];
    for (name, text) in documents() {
        if RuleSet::parse(&name, &text).is_ok() {
            assert_fits(&rules, &name, &text);
            seen[0] += 1;
        } else if ConfigFile::parse(Path::new(&name), &text).is_ok() {
            assert_fits(&config, &name, &text);
            seen[1] += 1;
        }
    }
    assert!(seen[0] > 5 && seen[1] > 10, "{seen:?}");
}

/// Whether the reader takes the shape of a document; what its values mean is another question.
fn has_the_shape(subject: Subject, document: &Value) -> Result<(), String> {
    let text = document.to_string();
    let error = match subject {
        Subject::Rules => RuleSet::parse("rules.yaml", &text).err().map(|error| error.to_string()),
        Subject::Config => ConfigFile::parse(Path::new("tidegate.yaml"), &text)
            .err()
            .map(|error| error.to_string()),
    };
    const SHAPES: [&str; 6] = [
        "no key",
        "must be a map",
        "must be a list",
        "must be a text",
        "is missing",
        "must read like",
    ];
    match error {
        Some(error) if SHAPES.iter().any(|shape| error.contains(shape)) => Err(error),
        _ => Ok(()),
    }
}

/// A document made of a schema's own keys and examples, as `choose` says.
fn made(
    schema: &Schema,
    parts: &BTreeMap<&str, &Schema>,
    choose: &mut dyn FnMut(usize) -> usize,
) -> Value {
    if let Some(part) = schema.keyword("$ref").and_then(Value::as_str) {
        return made(parts[part.trim_start_matches("#/$defs/")], parts, choose);
    }
    let (examples, deeper) =
        (schema.examples(), schema.keys().len() > 0 || schema.items().is_some());
    if !examples.is_empty() && (!deeper || choose(3) == 0) {
        return examples[choose(examples.len())].clone();
    }
    if let Some(Value::Array(words)) = schema.keyword("enum") {
        return words[choose(words.len())].clone();
    }
    if !schema.choices().is_empty() {
        return made(&schema.choices()[choose(schema.choices().len())], parts, choose);
    }
    if let Some(items) = schema.items() {
        return (0..1 + choose(2)).map(|_| made(items, parts, choose)).collect();
    }
    if schema.keys().len() > 0 {
        let mut map = Map::new();
        for (name, value) in schema.keys() {
            if schema.requires(name) || choose(4) == 0 {
                map.insert(name.to_owned(), made(value, parts, choose));
            }
        }
        return map.into();
    }
    if let Some(others) = schema.others() {
        let keys = (0..choose(3)).map(|index| format!("key-{index}"));
        return keys.map(|key| (key, made(others, parts, choose))).collect::<Map<_, _>>().into();
    }
    json!(["a", "10.0.0.0/8", "x:1"][choose(3)])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_fits_a_schema_has_the_shape_that_its_reader_takes(
        config in any::<bool>(),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 1..200),
    ) {
        let subject = if config { Subject::Config } else { Subject::Rules };
        let schema = subject.schema();
        let parts: BTreeMap<&str, &Schema> = schema.parts().collect();
        let mut next = choices.iter().cycle();
        let mut choose = |among: usize| next.next().map_or(0, |choice| choice.index(among));
        let mut document = made(&schema, &parts, &mut choose);
        // Two rules may have drawn the same name, which no schema can see.
        let rules = document.get_mut("rules").and_then(Value::as_array_mut);
        for (index, rule) in rules.into_iter().flatten().enumerate() {
            rule["name"] = json!(format!("rule-{index}"));
        }
        let validator = validator(subject);
        if validator.is_valid(&document) {
            let shape = has_the_shape(subject, &document);
            prop_assert!(shape.is_ok(), "{document}: {shape:?}");
        }
    }
}

/// The same document with a key that nobody knows in each of its maps, one after another.
fn with_unknown_keys(document: &Value) -> Vec<Value> {
    let mut found = Vec::new();
    match document {
        Value::Object(entries) => {
            let mut more = entries.clone();
            more.insert("no_such_key".to_owned(), json!({"no": {"such": "thing"}}));
            found.push(more.into());
            for (name, inner) in entries {
                // Here keys are the author's.
                if ["match", "limits", "attributes"].contains(&name.as_str()) {
                    continue;
                }
                for inner in with_unknown_keys(inner) {
                    let mut changed = entries.clone();
                    changed.insert(name.clone(), inner);
                    found.push(changed.into());
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                for inner in with_unknown_keys(item) {
                    let mut changed = items.clone();
                    changed[index] = inner;
                    found.push(changed.into());
                }
            }
        }
        _ => {}
    }
    found
}

#[test]
fn a_key_that_nobody_knows_is_refused_by_schema_and_reader() {
    let mut count = 0;
    for (name, text) in documents() {
        let subject = if RuleSet::parse(&name, &text).is_ok() {
            Subject::Rules
        } else if ConfigFile::parse(Path::new(&name), &text).is_ok() {
            Subject::Config
        } else {
            continue;
        };
        let validator = validator(subject);
        for document in with_unknown_keys(&read(&text)) {
            assert!(!validator.is_valid(&document), "{name}: {document}");
            assert!(has_the_shape(subject, &document).is_err(), "{name}: {document}");
            count += 1;
        }
    }
    assert!(count > 50, "{count}");
}
