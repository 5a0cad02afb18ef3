//! This node's share of its fleet on disk, for a restart while Redis is unreachable.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidegate_limiter::Share;
use tidegate_redis::{RedisConfig, RedisStore};

/// Most bytes that are read of the file.
const MAX_FILE_BYTES: u64 = 4096;

/// The file that stores the share. It is replaced atomically: a crash leaves the old or the new content.
#[derive(Clone, Debug)]
pub(crate) struct FleetFile {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredShare {
    /// The index of this node in the fleet, from 0.
    index: u64,
    nodes: u64,
}

impl FleetFile {
    /// Returns the file for one store. Files of other stores may be in the same folder.
    pub(crate) fn for_store(store: &RedisConfig, folder: &Path) -> Self {
        let name = blake3::hash(format!("{store} {}", store.prefix()).as_bytes()).to_hex();
        Self { path: folder.join(format!("fleet-{}.json", &name.as_str()[..16])) }
    }

    /// Returns the configuration with the stored share, and that share. A missing or invalid file changes nothing.
    pub(crate) fn restore(&self, config: RedisConfig) -> (RedisConfig, Option<Share>) {
        let path = self.path.display();
        let stored = match self.read() {
            Ok(Some(stored)) => stored,
            Ok(None) => return (config, None),
            Err(error) => {
                tracing::warn!(%path, error, "stored fleet size can't be used, starting without it");
                return (config, None);
            }
        };
        let share = Share { index: stored.index, of: stored.nodes };
        match config.clone().with_last_share(share) {
            Ok(config) => (config, Some(share)),
            Err(error) => {
                tracing::warn!(%path, %error, "stored fleet size can't be used, starting without it");
                (config, None)
            }
        }
    }

    fn read(&self) -> Result<Option<StoredShare>, String> {
        let file = match fs::File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let mut text = String::new();
        file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(|error| error.to_string())?;
        serde_json::from_str(&text).map(Some).map_err(|error| error.to_string())
    }

    fn write(&self, share: Share) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        // Two processes on one machine may write at the same time, so each has its own draft.
        let draft = self.path.with_extension(format!("{}.draft", std::process::id()));
        let text = serde_json::to_string(&StoredShare { index: share.index, nodes: share.of })?;
        let written = write_and_sync(&draft, &text).and_then(|()| fs::rename(&draft, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written
    }

    /// Stores the share whenever the store reports another one than `stored`.
    pub(crate) async fn store_changes(self, store: RedisStore, stored: Option<Share>) {
        let mut last = stored;
        let mut is_logged = false;
        loop {
            let share = store.next_share(last).await;
            last = Some(share);
            let file = self.clone();
            let written = tokio::task::spawn_blocking(move || file.write(share)).await;
            match written.map_err(io::Error::other).flatten() {
                Ok(()) => is_logged = false,
                Err(error) if !is_logged => {
                    is_logged = true;
                    let path = self.path.display();
                    tracing::warn!(
                        %path, %error,
                        "fleet size not stored; a restart without Redis would use an older size"
                    );
                }
                Err(_) => {}
            }
        }
    }
}

fn write_and_sync(path: &Path, text: &str) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> RedisConfig {
        url.parse().unwrap()
    }

    #[test]
    fn stored_share_is_restored_for_its_store_only() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("deep/er");
        let cache = config("redis://cache");
        let file = FleetFile::for_store(&cache, &deep);
        assert_eq!(file.restore(cache.clone()).1, None);
        file.write(Share { index: 0, of: 3 }).unwrap();
        let share = Share { index: 2, of: 4 };
        file.write(share).unwrap();
        let (restored, found) = file.restore(cache.clone());
        assert_eq!((restored.last_share(), found), (Some(share), Some(share)));
        assert_eq!(fs::read_dir(&deep).unwrap().count(), 1, "no draft is left");
        for other in ["redis://other", "redis://cache?prefix=shop:"] {
            let other = config(other);
            assert_eq!(FleetFile::for_store(&other, &deep).restore(other).1, None);
        }
    }

    #[test]
    fn invalid_share_is_not_restored() {
        let folder = tempfile::tempdir().unwrap();
        let cache = config("redis://cache");
        let file = FleetFile::for_store(&cache, folder.path());
        for text in [
            "",
            "{",
            "4",
            r#"{"index":0,"nodes":0}"#,
            r#"{"index":4,"nodes":4}"#,
            r#"{"index":0,"nodes":18446744073709551615}"#,
            r#"{"index":-1,"nodes":4}"#,
            r#"{"index":0,"nodes":4,"more":1}"#,
        ] {
            fs::write(&file.path, text).unwrap();
            let (restored, found) = file.restore(cache.clone());
            assert_eq!((restored.last_share(), found), (None, None), "{text}");
        }
        fs::write(&file.path, [0xff, 0xfe]).unwrap();
        assert_eq!(file.restore(cache.clone()).1, None);
        fs::write(&file.path, vec![b' '; 1 << 20]).unwrap();
        assert_eq!(file.restore(cache).1, None);
    }
}
