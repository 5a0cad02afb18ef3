//! Renders a schema as a page of tables: key, accepted values, default, description.
#![cfg_attr(not(test), allow(dead_code, reason = "only the test of the reference generates pages"))]

use std::fmt::Write;

use serde_json::Value;
use tidegate_rules::schema::Schema;

/// Returns the page of a schema. The shared parts come last, unless another page has them.
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

/// Adds a section with its own heading, for a part or a nested map.
fn section(page: &mut String, path: &str, schema: &Schema) {
    let _ = write!(page, "\n## {path}\n\n{}\n", schema.about());
    let examples: Vec<String> = schema.examples().iter().map(format_value).collect();
    if !examples.is_empty() {
        let _ = write!(page, "\nExamples: {}\n", examples.join("; "));
    }
    table(page, Some(path), schema);
    for choice in schema.choices().iter().filter(|choice| choice.keys().len() > 0) {
        let _ = write!(page, "\nAs a map:\n");
        table(page, Some(path), choice);
    }
    // A map with arbitrary keys describes the values behind them.
    for choice in schema.others().into_iter().flat_map(Schema::choices) {
        if choice.keys().len() > 0 {
            let _ = write!(page, "\n{}\n", choice.about());
            table(page, Some(path), choice);
        }
    }
}

/// Adds the table of the keys, then the sections of nested maps.
fn table(page: &mut String, path: Option<&str>, schema: &Schema) {
    if schema.keys().len() == 0 {
        return;
    }
    page.push_str("\n| key | value | default | description |\n|---|---|---|---|\n");
    for (name, value) in schema.keys() {
        let required = if schema.requires(name) { "**required**" } else { "" };
        let default = value.default_value().map_or_else(|| required.to_owned(), format_value);
        let about = match value.examples() {
            // The accepted words are listed already.
            [first, ..] if value.keyword("enum").is_none() => {
                format!("{} Example: {}.", value.about(), format_value(first))
            }
            _ => value.about().to_owned(),
        };
        let _ = writeln!(
            page,
            "| `{name}` | {} | {default} | {} |",
            accepted_values(value),
            escape_cell(&about)
        );
    }
    for (name, value) in schema.keys() {
        // The section of a list of maps describes one map.
        let value = value.items().filter(|items| items.keys().len() > 0).unwrap_or(value);
        if value.keys().len() > 0 {
            let path = path.map_or_else(|| name.to_owned(), |path| format!("{path}.{name}"));
            section(page, &path, value);
        }
    }
}

/// Returns a short description of the accepted values.
fn accepted_values(schema: &Schema) -> String {
    if let Some(Value::Array(words)) = schema.keyword("enum") {
        // A number may be listed twice: as a text and as a number.
        let mut texts: Vec<String> = Vec::new();
        for text in words.iter().map(format_value) {
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        return texts.join(", ");
    }
    if let Some(part) = schema.keyword("$ref").and_then(Value::as_str) {
        let name = part.trim_start_matches("#/$defs/");
        return format!("[{name}](rules.md#{name})");
    }
    if !schema.choices().is_empty() {
        let mut choices: Vec<String> = schema.choices().iter().map(accepted_values).collect();
        choices.dedup();
        return choices.join(", or ");
    }
    if let Some(items) = schema.items() {
        return format!("a list: {}", accepted_values(items));
    }
    let numbers = |keyword| schema.keyword(keyword).and_then(Value::as_u64);
    match (schema.keyword("type"), numbers("minimum"), numbers("maximum")) {
        (Some(_), Some(min), Some(max)) => format!("a whole number, {min} to {max}"),
        (Some(Value::String(kind)), ..) if kind == "object" => "a map".to_owned(),
        (Some(Value::Array(kinds)), ..) if kinds.len() == 3 => "any value".to_owned(),
        _ => "a text".to_owned(),
    }
}

/// Formats a value as it is written in a file.
fn format_value(value: &Value) -> String {
    format!("`{}`", escape_cell(&format_flow(value)))
}

fn format_flow(value: &Value) -> String {
    match value {
        Value::String(text) if text.contains([':', '{', '[', '*', '#', ',']) => format!("{text:?}"),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(format_flow).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) => {
            let entries: Vec<String> = entries
                .iter()
                .map(|(name, value)| format!("{name}: {}", format_flow(value)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
        other => other.to_string(),
    }
}

/// Escapes the separators of table cells.
fn escape_cell(text: &str) -> String {
    text.replace('|', "\\|")
}
