//! Writes the public interface of `tidegate` to standard output, one item per line.
//!
//! `tidegate` re-exports items of other crates of the workspace. rustdoc lists a re-export by its name only, so this
//! program replaces each one by the items that it stands for. Argument: the folder with the rustdoc JSON of the crates.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;

/// The crates that `tidegate` re-exports.
const CRATES: [&str; 4] = ["tidegate_core", "tidegate_limiter", "tidegate_redis", "tidegate_rules"];

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: tidegate-public-api FOLDER")?;
    let folder = Path::new(&folder);
    let facade = items(folder, "tidegate")?;
    let mut crates = Vec::new();
    for name in CRATES {
        crates.push((name, items(folder, name)?));
    }
    let mut lines = BTreeSet::new();
    for item in &facade {
        let Some(path) = item.strip_prefix("pub use tidegate::") else {
            lines.insert(item.clone());
            continue;
        };
        let replaced = resolve(path, &crates);
        if replaced.is_empty() {
            return Err(format!("{item}: found no item behind it, wanted one in {CRATES:?}").into());
        }
        lines.extend(replaced);
    }
    for line in lines {
        println!("{line}");
    }
    Ok(())
}

/// Returns the public items of a crate, without derived, automatic and blanket implementations.
fn items(folder: &Path, name: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let api = public_api::Builder::from_rustdoc_json(folder.join(format!("{name}.json")))
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    Ok(api.items().map(ToString::to_string).collect())
}

/// Returns the items behind a path of the facade, with the path of the facade in them.
fn resolve(path: &str, crates: &[(&str, Vec<String>)]) -> Vec<String> {
    let name = path.rsplit("::").next().unwrap_or(path);
    for (source, items) in crates {
        // A re-export names a whole crate, or an item at the root of one, or a module of one.
        let origin = match source.strip_prefix("tidegate_") {
            Some(short) if short == name => (*source).to_owned(),
            _ => format!("{source}::{name}"),
        };
        let origins = [vec![origin], definitions(items, source, name)].concat();
        let found: Vec<String> = items
            .iter()
            .filter(|item| {
                let subject = subject(item);
                subject.is_some_and(|path| origins.iter().any(|origin| is_within(path, origin)))
            })
            .map(|item| {
                let facade_path = format!("tidegate::{path}");
                origins
                    .iter()
                    .fold(item.clone(), |item, origin| replace_path(&item, origin, &facade_path))
            })
            .collect();
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

/// Returns the paths of types with this name in the modules of a crate: the methods of a type that the root re-exports are
/// listed under the path of its module.
fn definitions(items: &[String], source: &str, name: &str) -> Vec<String> {
    let is_type =
        |item: &&String| ["struct ", "enum ", "trait "].iter().any(|kind| item.contains(kind));
    let defined = items.iter().filter(is_type).filter_map(|item| subject(item));
    let in_module = |path: &&str| {
        let module = path.strip_suffix(name).and_then(|rest| rest.strip_suffix("::"));
        module.is_some_and(|module| module != source && module.starts_with(source))
    };
    defined.filter(in_module).map(str::to_owned).collect()
}

/// Replaces a path where it is not the start of a longer name.
fn replace_path(item: &str, path: &str, by: &str) -> String {
    let mut parts = item.split(path);
    let mut replaced = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_longer = part.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        replaced.push_str(if is_longer { path } else { by });
        replaced.push_str(part);
    }
    replaced
}

/// Returns the path of the item itself: the type of an implementation, else the first path of the workspace.
fn subject(item: &str) -> Option<&str> {
    let from = match item.starts_with("impl") {
        true => item.rfind(" for ").map_or(0, |at| at + 5),
        false => 0,
    };
    let start = from + item.get(from..)?.find("tidegate")?;
    let rest = item.get(start..)?;
    let end =
        rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(rest.len());
    Some(rest.get(..end)?.trim_end_matches(':'))
}

/// Returns whether a path is `origin` or below it.
fn is_within(path: &str, origin: &str) -> bool {
    path.strip_prefix(origin).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}
