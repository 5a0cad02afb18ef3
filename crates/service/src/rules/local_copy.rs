//! A copy of the last valid rules on the local disk, for a start while the source is unreachable.
//!
//! Several processes may share one copy: two servers of one machine, or two containers on one volume. A file lock beside
//! it orders their writes, and a write never replaces a newer version.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tidegate_core::Timestamp;
use tidegate_rules::RuleSet;

use crate::config_error::ConfigError;
use crate::config_error::read_file;
use crate::rules::RulesDocument;

/// Start of the first line of a copy. The checksum of the rest of the file follows, then the [`CopyHeader`] as JSON.
const FIRST_LINE_PREFIX: &str = "# tidegate copy ";
/// Longest first line in bytes.
const MAX_FIRST_LINE_BYTES: usize = 64 * 1024;
/// Name extension of a file that is not yet complete.
const DRAFT_EXTENSION: &str = "draft";

/// A file with one document, readable only by its owner: rules may name clients by secrets.
#[derive(Debug)]
pub struct LocalCopy {
    path: PathBuf,
    source: String,
    /// Orders the writes of this process where the file system has no locks.
    writing: Mutex<()>,
}

/// The source and version of a copied document.
#[derive(Serialize, Deserialize)]
struct CopyHeader {
    source: String,
    version: u64,
    by: String,
    note: String,
    /// The time of the push, in microseconds since 1970.
    at: Option<u64>,
}

/// A copy that can't be used: it is damaged, unreadable or of another source.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {reason}", path.display())]
pub(crate) struct CopyError {
    path: PathBuf,
    reason: String,
}

impl LocalCopy {
    /// Returns the copy of a source. Copies of several sources can share a directory.
    pub(crate) fn new(source: &str, folder: &Path) -> Self {
        let name = blake3::hash(source.as_bytes()).to_hex();
        let path = folder.join(format!("rules-{}.yaml", &name.as_str()[..16]));
        Self { path, source: source.to_owned(), writing: Mutex::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the document; `None` if there is no file.
    ///
    /// # Errors
    /// The file can't be read, its checksum is wrong, or it belongs to another source.
    pub(crate) fn read(&self) -> Result<Option<RulesDocument>, CopyError> {
        if !self.path.try_exists().unwrap_or(true) {
            return Ok(None);
        }
        let invalid = |reason: String| CopyError { path: self.path.clone(), reason };
        let file = read_file(&self.path, RuleSet::MAX_DOCUMENT_BYTES + MAX_FIRST_LINE_BYTES);
        let file = file.map_err(|error| match error {
            ConfigError::Unreadable { reason, .. } => invalid(reason),
            other => invalid(other.to_string()),
        })?;
        let parts = file.strip_prefix(FIRST_LINE_PREFIX).and_then(|rest| rest.split_once(' '));
        let (wanted, rest) = parts.ok_or_else(|| {
            invalid(format!("must begin with {FIRST_LINE_PREFIX:?} and a checksum"))
        })?;
        let found = blake3::hash(rest.as_bytes()).to_hex();
        if wanted != found.as_str() {
            return Err(invalid(format!("must have checksum {wanted:?}, found {found}")));
        }
        let parsed = rest.split_once('\n').and_then(|(header, text)| {
            Some((serde_json::from_str::<CopyHeader>(header).ok()?, text))
        });
        let (header, text) = parsed.ok_or_else(|| invalid("has another format".to_owned()))?;
        if header.source != self.source {
            let (source, found) = (&self.source, &header.source);
            return Err(invalid(format!("must be of source {source:?}, found {found:?}")));
        }
        Ok(Some(RulesDocument {
            number: Some(header.version),
            by: header.by,
            note: header.note,
            at: header.at.map(Timestamp::from_micros),
            ..RulesDocument::new(&self.path.display().to_string(), text)
        }))
    }

    /// Replaces the copy, unless the one on disk is the same or newer. Returns whether it was replaced.
    ///
    /// After a crash the file is the old or the new copy, complete. Writers of several threads and processes take
    /// turns, so an older version never replaces a newer one.
    ///
    /// # Errors
    /// The copy could not be written; the old one is still there.
    pub(crate) fn write(&self, document: &RulesDocument, number: u64) -> io::Result<bool> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let _writing = self.writing.lock();
        let lock = owner_only().truncate(false).open(self.path.with_extension("lock"))?;
        let is_locked = match lock.lock() {
            Ok(()) => true,
            // Some network file systems have no locks. Then only the writes of this process are ordered.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => false,
            Err(error) => return Err(error),
        };
        // A damaged copy is an error of `read`, and is replaced.
        if let Ok(Some(stored)) = self.read()
            && stored.number.is_some_and(|stored_number| {
                stored_number > number || (stored_number == number && stored.text == document.text)
            })
        {
            return Ok(false);
        }
        if is_locked {
            self.remove_drafts(folder);
        }
        let header = CopyHeader {
            source: self.source.clone(),
            version: number,
            by: document.by.clone(),
            note: document.note.clone(),
            at: document.at.map(Timestamp::as_micros),
        };
        let rest = format!("{}\n{}", serde_json::to_string(&header)?, document.text);
        let draft = self.create_draft()?;
        let written = write_and_sync(&draft, &rest)
            .and_then(|()| fs::rename(&draft, &self.path))
            // The rename is durable only after the directory is synced.
            .and_then(|()| File::open(folder)?.sync_all());
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written.map(|()| true)
    }

    /// Creates a file under a random name, and returns its path. Process ids would not be unique: containers on one
    /// volume may have the same.
    fn create_draft(&self) -> io::Result<PathBuf> {
        loop {
            let random = RandomState::new().hash_one(0);
            let draft = self.path.with_extension(format!("{random:016x}.{DRAFT_EXTENSION}"));
            match owner_only().create_new(true).open(&draft) {
                Ok(_) => return Ok(draft),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes the drafts of crashed writers. Every writer holds the lock, so no draft is in use.
    fn remove_drafts(&self, folder: &Path) {
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let is_draft = |name: &str| {
            name.strip_prefix(&*stem).is_some_and(|rest| rest.starts_with('.'))
                && name.ends_with(&format!(".{DRAFT_EXTENSION}"))
        };
        for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
            if entry.file_name().to_str().is_some_and(is_draft) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Returns options that open or create a file with access for its owner alone.
fn owner_only() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

fn write_and_sync(path: &Path, rest: &str) -> io::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    let checksum = blake3::hash(rest.as_bytes()).to_hex();
    file.write_all(format!("{FIRST_LINE_PREFIX}{checksum} ").as_bytes())?;
    file.write_all(rest.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    fn document(text: &str) -> RulesDocument {
        RulesDocument::new("", text)
    }

    fn files(copy: &LocalCopy) -> Vec<String> {
        let entries = fs::read_dir(copy.path().parent().unwrap()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn copy_reads_as_it_was_written_and_only_by_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let copy = LocalCopy::new("redis://cache", &folder.path().join("deep/er"));
        assert!(copy.read().unwrap().is_none());
        let mut document = document("rules: []\n# two\n");
        document.by = "ann".to_owned();
        document.note = "a\nb".to_owned();
        document.at = Some(Timestamp::from_micros(5_000_001));
        assert!(copy.write(&document, 7).unwrap());
        assert!(copy.write(&document, 8).unwrap());
        let found = copy.read().unwrap().unwrap();
        assert_eq!((found.number, &*found.text), (Some(8), "rules: []\n# two\n"));
        assert_eq!((found.by, found.note, found.at), (document.by, document.note, document.at));
        let mode = fs::metadata(copy.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(files(&copy).len(), 2, "{:?}", files(&copy));
    }

    #[test]
    fn copy_of_another_source_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (LocalCopy::new("a", folder.path()), LocalCopy::new("b", folder.path()));
        one.write(&document("rules: []"), 1).unwrap();
        assert!(other.read().unwrap().is_none());
        fs::copy(one.path(), other.path()).unwrap();
        let error = other.read().unwrap_err().to_string();
        assert!(error.ends_with(r#"must be of source "b", found "a""#), "{error}");
    }

    #[test]
    fn damaged_copy_is_an_error_whichever_byte_changed() {
        let folder = tempfile::tempdir().unwrap();
        let copy = LocalCopy::new("a", folder.path());
        copy.write(&document("rules: [] # 12\n"), 41).unwrap();
        let whole = fs::read(copy.path()).unwrap();
        for place in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[place] ^= 1;
            fs::write(copy.path(), &damaged).unwrap();
            let error = copy.read().unwrap_err().to_string();
            assert!(error.starts_with(copy.path().to_str().unwrap()), "{error}");
            fs::write(copy.path(), &whole[..place]).unwrap();
            copy.read().unwrap_err();
        }
        // A damaged copy is replaced, whatever its number was.
        assert!(copy.write(&document("rules: []"), 2).unwrap());
        assert_eq!(copy.read().unwrap().unwrap().number, Some(2));
    }

    #[test]
    fn older_version_never_replaces_a_newer_one() {
        let folder = tempfile::tempdir().unwrap();
        let copy = LocalCopy::new("a", folder.path());
        assert!(copy.write(&document("five"), 5).unwrap());
        assert!(!copy.write(&document("four"), 4).unwrap());
        assert!(!copy.write(&document("five"), 5).unwrap());
        assert_eq!(&*copy.read().unwrap().unwrap().text, "five");
        assert!(copy.write(&document("another five"), 5).unwrap());
        assert_eq!(&*copy.read().unwrap().unwrap().text, "another five");
    }

    #[test]
    fn drafts_of_crashed_writers_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (copy, other) =
            (LocalCopy::new("a", folder.path()), LocalCopy::new("b", folder.path()));
        let drafts = ["1.draft", "0123456789abcdef.draft"];
        drafts.iter().for_each(|end| fs::write(copy.path().with_extension(end), "half").unwrap());
        fs::write(other.path().with_extension("1.draft"), "half").unwrap();
        copy.write(&document("five"), 5).unwrap();
        let left = files(&copy);
        assert_eq!(left.len(), 3, "{left:?}");
        assert_eq!(left.iter().filter(|name| name.ends_with(".draft")).count(), 1, "{left:?}");
    }

    /// The environment variable with the directory of the processes that the test starts.
    const FOLDER: &str = "TIDEGATE_TEST_COPY_FOLDER";
    const WRITES: u64 = 100;

    /// Returns texts of different lengths, so that a mix of two would be detected.
    fn text_of(number: u64) -> String {
        format!("rules: [] # {number}\n").repeat(usize::try_from(number * 7919 % 300).unwrap() + 1)
    }

    /// Writes versions in a slightly random order, from several threads.
    fn write_shuffled(folder: &Path) {
        let copy = LocalCopy::new("a", folder);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let random = RandomState::new();
                    let mut numbers: Vec<u64> = (1..=WRITES).collect();
                    // Shifted by up to ten places, so that almost every write races with a newer one.
                    numbers.sort_unstable_by_key(|number| number + random.hash_one(number) % 10);
                    for number in numbers {
                        copy.write(&document(&text_of(number)), number).unwrap();
                        let found = copy.read().unwrap().unwrap();
                        let kept = found.number.unwrap();
                        assert!(kept >= number, "{kept} after {number}");
                        assert_eq!(*found.text, *text_of(kept));
                    }
                });
            }
        });
    }

    #[test]
    fn racing_processes_leave_the_newest_copy_complete() {
        if let Some(folder) = std::env::var_os(FOLDER) {
            write_shuffled(Path::new(&folder));
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let name = "rules::local_copy::tests::racing_processes_leave_the_newest_copy_complete";
        let mut writers: Vec<_> = (0..3)
            .map(|_| {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["--exact", name, "--nocapture"]).env(FOLDER, folder.path());
                command.spawn().unwrap()
            })
            .collect();
        for writer in &mut writers {
            assert!(writer.wait().unwrap().success());
        }
        let copy = LocalCopy::new("a", folder.path());
        let found = copy.read().unwrap().unwrap();
        assert_eq!((found.number, &*found.text), (Some(WRITES), &*text_of(WRITES)));
        assert_eq!(files(&copy).len(), 2, "{:?}", files(&copy));
    }
}
