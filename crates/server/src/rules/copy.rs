//! The last good rules on this machine's disk, for a start without their source.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidegate::{RuleSet, Timestamp};

use super::Document;
use crate::config;

/// What the first line of a copy begins with; the rest of it is about the document.
const MARK: &str = "# tidegate copy ";

/// Keeps one document in a file that only its owner can read: rules may name clients by secrets.
#[derive(Debug)]
pub(crate) struct LocalCopy {
    path: PathBuf,
    source: String,
}

#[derive(Serialize, Deserialize)]
struct About {
    source: String,
    version: u64,
    by: String,
    note: String,
    /// Unix seconds.
    at: Option<u64>,
}

impl LocalCopy {
    /// The copy of what this source has, in a directory that copies of others may be in too.
    pub(crate) fn of(source: &str, folder: &Path) -> Self {
        let name = blake3::hash(source.as_bytes()).to_hex();
        let path = folder.join(format!("rules-{}.yaml", &name.as_str()[..16]));
        Self { path, source: source.to_owned() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What was last kept, if anything was and can still be read.
    pub(crate) fn read(&self) -> Option<Document> {
        // Room for the first line, too.
        let kept = config::read(&self.path, RuleSet::MAX_DOCUMENT + 64 * 1024).ok()?;
        let (first, text) = kept.split_once('\n')?;
        let about: About = serde_json::from_str(first.strip_prefix(MARK)?).ok()?;
        if about.source != self.source {
            return None;
        }
        Some(Document {
            number: Some(about.version),
            by: about.by,
            note: about.note,
            at: about.at.map(Timestamp::from_secs),
            ..Document::new(&self.path.display().to_string(), text)
        })
    }

    /// Keeps a document instead of the last. A crash leaves one of the two, whole.
    ///
    /// # Errors
    /// It could not be written; the last is still there.
    pub(crate) fn write(&self, document: &Document, number: u64) -> io::Result<()> {
        let about = About {
            source: self.source.clone(),
            version: number,
            by: document.by.clone(),
            note: document.note.clone(),
            at: document.at.map(|at| at.as_secs_ceil()),
        };
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        // Two servers of one machine may do this at the same time.
        let draft = self.path.with_extension(format!("{}.draft", std::process::id()));
        let written = write_whole(&draft, &serde_json::to_string(&about)?, &document.text)
            .and_then(|()| fs::rename(&draft, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written
    }
}

fn write_whole(path: &Path, about: &str, text: &str) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(MARK.as_bytes())?;
    file.write_all(about.as_bytes())?;
    file.write_all(b"\n")?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_was_kept_is_found_again_and_by_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let copy = LocalCopy::of("redis://cache", &folder.path().join("deep/er"));
        assert!(copy.read().is_none());
        let mut document = Document::new("", "rules: []\n# two\n");
        document.by = "ann".to_owned();
        document.note = "a\nb".to_owned();
        document.at = Some(Timestamp::from_secs(5));
        copy.write(&document, 7).unwrap();
        copy.write(&document, 8).unwrap();
        let found = copy.read().unwrap();
        assert_eq!((found.number, &*found.text), (Some(8), "rules: []\n# two\n"));
        assert_eq!((found.by, found.note, found.at), (document.by, document.note, document.at));
        let mode = fs::metadata(copy.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(copy.path().parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn the_copy_of_another_source_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (LocalCopy::of("a", folder.path()), LocalCopy::of("b", folder.path()));
        one.write(&Document::new("", "rules: []"), 1).unwrap();
        assert!(other.read().is_none());
        fs::copy(one.path(), other.path()).unwrap();
        assert!(other.read().is_none());
        fs::write(one.path(), "rules: []").unwrap();
        assert!(one.read().is_none());
    }
}
