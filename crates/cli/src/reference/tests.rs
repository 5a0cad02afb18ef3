//! The committed reference is current, and the schemas agree with the parsers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jsonschema::Validator;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::config::ConfigFile;

const EDITORS: &str =
    "Editors that support JSON Schema complete and check a file whose first line is";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference")
}

fn files() -> [(&'static str, String); 4] {
    let (rules, config) = (SchemaKind::Rules.schema(), SchemaKind::Config.schema());
    let intro = |file: &str, more: &str| {
        let schema = format!(
            "https://raw.githubusercontent.com/tidegate/tidegate/main/docs/reference/{file}"
        );
        let served = format!(
            "A server returns the same schema at `/v1/schema/{}` on its admin listener",
            file.replace(".schema", "")
        );
        format!(
            "{EDITORS}\n\n```yaml\n# yaml-language-server: $schema={schema}\n```\n\n{served}, and \
             `tidegate validate --schema {}` prints it. This page is generated from it (`make reference`). {more}",
            file.split('.').next().unwrap_or_default()
        )
    };
    let rules_more = "[The guide](../guide/rules.md) explains rules with examples.";
    let config_more = "The keys of a rule are [on a separate page](rules.md).";
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
fn committed_reference_is_current() {
    let write = std::env::var_os("TIDEGATE_REFERENCE").is_some_and(|value| value == "write");
    for (name, generated) in files() {
        let path = folder().join(name);
        if write {
            std::fs::create_dir_all(folder()).unwrap();
            std::fs::write(&path, &generated).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == generated, "docs/reference/{name} is stale: make reference");
    }
}

fn validator(subject: SchemaKind) -> Validator {
    let schema: Value = serde_json::from_str(&subject.schema().to_json()).unwrap();
    jsonschema::draft202012::meta::validate(&schema).unwrap();
    jsonschema::draft202012::new(&schema).unwrap()
}

/// Visits a schema and all nested schemas.
fn each<'s>(schema: &'s Schema, place: &str, visit: &mut impl FnMut(&str, &'s Schema)) {
    visit(place, schema);
    let inner = schema.keys().chain(schema.parts());
    inner.for_each(|(name, inner)| each(inner, &format!("{place}.{name}"), visit));
    let unnamed = schema.others().into_iter().chain(schema.items()).chain(schema.choices());
    unnamed.for_each(|inner| each(inner, place, visit));
}

#[test]
fn every_key_has_a_description_and_a_valid_example() {
    for subject in [SchemaKind::Rules, SchemaKind::Config] {
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

/// Parses YAML 1.2 like an editor: `off` is a text.
fn read(text: &str) -> Value {
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).unwrap()
}

fn assert_valid(validator: &Validator, name: &str, text: &str) {
    let document = read(text);
    let errors: Vec<String> = validator
        .iter_errors(&document)
        .map(|error| format!("{} at {}", error, error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{name}: {errors:#?}\n{text}");
}

/// Returns the YAML blocks of the guide, and the YAML files of `deploy` and of the fuzz seeds.
fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    let mut folders =
        vec![root.join("docs/guide"), root.join("deploy"), root.join("fuzz/seeds/rules")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.display().to_string();
            match path.extension().and_then(|kind| kind.to_str()) {
                _ if path.is_dir() => folders.push(path),
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
fn documented_and_shipped_files_fit_the_schemas() {
    let (rules, config) = (validator(SchemaKind::Rules), validator(SchemaKind::Config));
    let mut seen = [0, 0];
    for (name, text) in documents() {
        if RuleSet::parse(&name, &text).is_ok() {
            assert_valid(&rules, &name, &text);
            seen[0] += 1;
        } else if ConfigFile::parse(Path::new(&name), &text).is_ok() {
            assert_valid(&config, &name, &text);
            seen[1] += 1;
        }
    }
    assert!(seen[0] > 5 && seen[1] > 10, "{seen:?}");
}

/// Checks that the parser accepts the structure of a document. Invalid values are ignored.
fn check_structure(subject: SchemaKind, document: &Value) -> Result<(), String> {
    let text = document.to_string();
    let error = match subject {
        SchemaKind::Rules => {
            RuleSet::parse("rules.yaml", &text).err().map(|error| error.to_string())
        }
        SchemaKind::Config => ConfigFile::parse(Path::new("tidegate.yaml"), &text)
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

/// Returns a document from the keys and examples of a schema. `choose` selects among them.
fn generate(
    schema: &Schema,
    parts: &BTreeMap<&str, &Schema>,
    choose: &mut dyn FnMut(usize) -> usize,
) -> Value {
    if let Some(part) = schema.keyword("$ref").and_then(Value::as_str) {
        return generate(parts[part.trim_start_matches("#/$defs/")], parts, choose);
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
        return generate(&schema.choices()[choose(schema.choices().len())], parts, choose);
    }
    if let Some(items) = schema.items() {
        return (0..1 + choose(2)).map(|_| generate(items, parts, choose)).collect();
    }
    if schema.keys().len() > 0 {
        let mut map = Map::new();
        for (name, value) in schema.keys() {
            if schema.requires(name) || choose(4) == 0 {
                map.insert(name.to_owned(), generate(value, parts, choose));
            }
        }
        return map.into();
    }
    if let Some(others) = schema.others() {
        let keys = (0..choose(3)).map(|index| format!("key-{index}"));
        return keys
            .map(|key| (key, generate(others, parts, choose)))
            .collect::<Map<_, _>>()
            .into();
    }
    json!(["a", "10.0.0.0/8", "x:1"][choose(3)])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn valid_document_of_a_schema_is_accepted_by_its_parser(
        config in any::<bool>(),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 1..200),
    ) {
        let subject = if config { SchemaKind::Config } else { SchemaKind::Rules };
        let schema = subject.schema();
        let parts: BTreeMap<&str, &Schema> = schema.parts().collect();
        let mut next = choices.iter().cycle();
        let mut choose = |among: usize| next.next().map_or(0, |choice| choice.index(among));
        let mut document = generate(&schema, &parts, &mut choose);
        // A schema can't express that the names of rules are unique.
        let rules = document.get_mut("rules").and_then(Value::as_array_mut);
        for (index, rule) in rules.into_iter().flatten().enumerate() {
            rule["name"] = json!(format!("rule-{index}"));
        }
        let validator = validator(subject);
        if validator.is_valid(&document) {
            let structure = check_structure(subject, &document);
            prop_assert!(structure.is_ok(), "{document}: {structure:?}");
        }
    }
}

/// Returns copies of a document, each with an unknown key in another one of its maps.
fn with_unknown_keys(document: &Value) -> Vec<Value> {
    let mut found = Vec::new();
    match document {
        Value::Object(entries) => {
            let mut more = entries.clone();
            more.insert("no_such_key".to_owned(), json!({"no": {"such": "thing"}}));
            found.push(more.into());
            for (name, inner) in entries {
                // These maps accept any key.
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
fn unknown_key_is_rejected_by_schema_and_parser() {
    let mut count = 0;
    for (name, text) in documents() {
        let subject = if RuleSet::parse(&name, &text).is_ok() {
            SchemaKind::Rules
        } else if ConfigFile::parse(Path::new(&name), &text).is_ok() {
            SchemaKind::Config
        } else {
            continue;
        };
        let validator = validator(subject);
        for document in with_unknown_keys(&read(&text)) {
            assert!(!validator.is_valid(&document), "{name}: {document}");
            assert!(check_structure(subject, &document).is_err(), "{name}: {document}");
            count += 1;
        }
    }
    assert!(count > 50, "{count}");
}
