//! The files of a configuration directory.

use std::path::{Path, PathBuf};

use tidegate_rules::RuleSet;

use crate::config_error::ConfigError;
use crate::config_error::read_file;

/// Most files of one directory.
const MAX_FILES: usize = 1_000;
/// Most entries of a directory, including files with other names.
const MAX_ENTRIES: usize = 10_000;

/// Returns path and text of the `*.yaml` and `*.yml` files of a directory, sorted by name. Hidden files and
/// subdirectories are left out.
///
/// # Errors
/// The directory or a file can't be read, or the directory has no such file or too many.
pub(crate) fn read(folder: &Path) -> Result<Vec<(String, String)>, ConfigError> {
    let unreadable = |reason: String| ConfigError::Unreadable { path: folder.to_owned(), reason };
    let entries = std::fs::read_dir(folder).map_err(|error| unreadable(error.to_string()))?;
    let mut paths: Vec<PathBuf> = Vec::new();
    for (index, entry) in entries.enumerate() {
        let path = entry.map_err(|error| unreadable(error.to_string()))?.path();
        if index == MAX_ENTRIES {
            return Err(unreadable(format!("at most {MAX_ENTRIES} files are wanted, found more")));
        }
        // Kubernetes mounts files as symbolic links, so links are followed.
        if is_visible_yaml(&path) && !path.is_dir() {
            paths.push(path);
        }
    }
    match paths.len() {
        0 => return Err(unreadable("*.yaml or *.yml files are wanted, found none".to_owned())),
        1..=MAX_FILES => {}
        found => {
            let reason = format!("at most {MAX_FILES} *.yaml files are wanted, found {found}");
            return Err(unreadable(reason));
        }
    }
    paths.sort();
    let read = paths.into_iter().map(|path| {
        let text = read_file(&path, RuleSet::MAX_DOCUMENT_BYTES)?;
        Ok((path.display().to_string(), text))
    });
    read.collect()
}

fn is_visible_yaml(path: &Path) -> bool {
    let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
    yaml && !hidden
}
