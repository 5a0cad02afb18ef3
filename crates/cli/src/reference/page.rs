//! A schema as a page of tables: key, what it takes, default, what it means.
#![cfg_attr(not(test), allow(dead_code, reason = "pages are made when the reference is"))]

use std::fmt::Write;

use serde_json::Value;
use tidegate_rules::schema::Schema;

/// The page of a schema; the tables of its parts come last, unless another page has them.
pub(crate) fn page(title: &str, schema: &Schema, intro: &str, with_parts: bool) -> String {
    let mut page = format!("# {title}\n\n{}\n\n{intro}\n", schema.about());
    table(&mut page, None, schema);
    if with_parts {
        for (name, part) in schema.parts() {
            section(&mut page, name, part);
        }
    }
    page
}

/// A part, or a map below another, with a heading of its own.
fn section(page: &mut String, path: &str, schema: &Schema) {
    let _ = write!(page, "\n## {path}\n\n{}\n", schema.about());
    let examples: Vec<String> = schema.examples().iter().map(written).collect();
    if !examples.is_empty() {
        let _ = write!(page, "\nExamples: {}\n", examples.join("; "));
    }
    table(page, Some(path), schema);
    for choice in schema.choices().iter().filter(|choice| choice.keys().len() > 0) {
        let _ = write!(page, "\nAs a map:\n");
        table(page, Some(path), choice);
    }
    // A part whose keys are the author's says what stands behind them.
    for choice in schema.others().into_iter().flat_map(Schema::choices) {
        if choice.keys().len() > 0 {
            let _ = write!(page, "\nThe maps have one of:\n");
            table(page, Some(path), choice);
        }
    }
}

fn table(page: &mut String, path: Option<&str>, schema: &Schema) {
    if schema.keys().len() == 0 {
        return;
    }
    page.push_str("\n| key | takes | default | |\n|---|---|---|---|\n");
    for (name, value) in schema.keys() {
        let must = if schema.requires(name) { "**required**" } else { "" };
        let usual = value.default_value().map_or_else(|| must.to_owned(), written);
        let about = match value.examples() {
            // The words are listed already.
            [first, ..] if value.keyword("enum").is_none() => {
                format!("{} For example {}.", value.about(), written(first))
            }
            _ => value.about().to_owned(),
        };
        let _ = writeln!(page, "| `{name}` | {} | {usual} | {} |", takes(value), cell(&about));
    }
    for (name, value) in schema.keys() {
        // Of a list of maps, what each of them has.
        let value = value.items().filter(|items| items.keys().len() > 0).unwrap_or(value);
        if value.keys().len() > 0 {
            let path = path.map_or_else(|| name.to_owned(), |path| format!("{path}.{name}"));
            section(page, &path, value);
        }
    }
}

/// What a value may be, in a few words.
fn takes(schema: &Schema) -> String {
    if let Some(Value::Array(words)) = schema.keyword("enum") {
        let words: Vec<String> = words.iter().map(written).collect();
        return words.join(", ");
    }
    if let Some(part) = schema.keyword("$ref").and_then(Value::as_str) {
        let name = part.trim_start_matches("#/$defs/");
        return format!("[{name}](rules.md#{name})");
    }
    if !schema.choices().is_empty() {
        let mut choices: Vec<String> = schema.choices().iter().map(takes).collect();
        choices.dedup();
        return choices.join(", or ");
    }
    if let Some(items) = schema.items() {
        return format!("a list: {}", takes(items));
    }
    let numbers = |keyword| schema.keyword(keyword).and_then(Value::as_u64);
    match (schema.keyword("type"), numbers("minimum"), numbers("maximum")) {
        (Some(_), Some(least), Some(most)) => format!("a whole number, {least} to {most}"),
        (Some(Value::String(kind)), ..) if kind == "object" => "a map".to_owned(),
        (Some(Value::Array(kinds)), ..) if kinds.len() == 3 => "any value".to_owned(),
        _ => "a text".to_owned(),
    }
}

/// A value as somebody would write it into a file.
fn written(value: &Value) -> String {
    format!("`{}`", cell(&flow(value)))
}

fn flow(value: &Value) -> String {
    match value {
        Value::String(text) if text.contains([':', '{', '[', '*', '#', ',']) => format!("{text:?}"),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(flow).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) => {
            let entries: Vec<String> =
                entries.iter().map(|(name, value)| format!("{name}: {}", flow(value))).collect();
            format!("{{{}}}", entries.join(", "))
        }
        other => other.to_string(),
    }
}

/// A text that does not end the cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
