//! Documents that a fleet shares through real Redis servers.

mod deployments;
mod subscription;

use std::time::Duration;

use futures_util::future::join_all;
use tidegate::Timestamp;
use tidegate::error::StoreError;
use tidegate::redis::{
    DocumentVersion, DocumentWithText, Expected, LatestVersion, NewVersion, PutError, RedisDocument,
};
use tidegate_testkit::{Flavour, Redis, Tool, WAIT_TIMEOUT, lacking};
use tokio::time::timeout;

const REQUIRED_TOOLS: [Tool; 1] = [Tool::Server(Flavour::Redis)];
/// Redis key of the document `rules`.
const DOCUMENT_KEY: &str = "tg::{document:rules}";

async fn open_document(url: &str) -> RedisDocument {
    RedisDocument::start(url.parse().unwrap(), "rules").await.unwrap()
}

fn new_version(text: &str) -> NewVersion<'_> {
    NewVersion { text, by: "ann", note: "a test", expected: Expected::Any, above: 0 }
}

async fn latest(document: &RedisDocument) -> Option<DocumentWithText> {
    match document.latest(None).await.unwrap() {
        LatestVersion::Nothing => None,
        LatestVersion::Other(stored) => Some(stored),
        LatestVersion::Same => panic!("nothing was known"),
    }
}

fn version_numbers(versions: &[DocumentVersion]) -> Vec<u64> {
    versions.iter().map(|version| version.number).collect()
}

#[tokio::test]
async fn version_written_by_one_node_is_read_by_another() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let store = crate::connect(server.url().parse().unwrap()).await;
    let (one, other) = (store.document("rules"), open_document(&server.url()).await);
    assert_eq!(one.latest(None).await, Ok(LatestVersion::Nothing));
    assert_eq!(one.latest(Some((3, "aa"))).await, Ok(LatestVersion::Nothing));
    assert_eq!((one.history(9).await, one.version(1).await), (Ok(Vec::new()), Ok(None)));

    let before = server.time_micros();
    let text = "rules: [] # ü\u{0}\n";
    let first =
        one.put(NewVersion { by: "ann@laptop", note: "a \"start\"\n", ..new_version(text) }).await;
    let first = first.unwrap();
    let hash = blake3::hash(text.as_bytes()).to_hex()[..16].to_owned();
    let at = first.at;
    assert!((before..=server.time_micros()).contains(&at.as_micros()), "{at:?}");
    let (by, note) = ("ann@laptop".to_owned(), "a \"start\"\n".to_owned());
    let bytes = u64::try_from(text.len()).unwrap();
    assert_eq!(first, DocumentVersion { number: 1, hash, at, by, note, bytes });

    let stored = DocumentWithText { version: first.clone(), text: text.to_owned() };
    assert_eq!(latest(&other).await, Some(stored.clone()));
    assert_eq!(other.latest(Some((1, &first.hash))).await, Ok(LatestVersion::Same));
    for known in [(2, first.hash.as_str()), (1, "0000000000000000"), (0, "")] {
        assert_eq!(other.latest(Some(known)).await, Ok(LatestVersion::Other(stored.clone())));
    }

    let second = other.put(new_version("rules: {}")).await.unwrap();
    assert_eq!(one.history(9).await, Ok(vec![second.clone(), first]));
    assert_eq!(one.history(1).await, Ok(vec![second]));
    assert_eq!(one.version(1).await, Ok(Some(stored)));
    assert_eq!((one.version(3).await, one.version(u64::MAX).await), (Ok(None), Ok(None)));
    // Documents with different names are independent.
    assert_eq!(store.document("other").latest(None).await, Ok(LatestVersion::Nothing));
}

#[tokio::test]
async fn one_of_several_concurrent_writers_wins_and_the_others_get_a_conflict() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let url = server.url();
    let documents = join_all((0..8).map(|_| open_document(&url))).await;
    for round in 0..20 {
        let texts: Vec<String> = (0..32).map(|task| format!("{round} {task}")).collect();
        let racing = texts.iter().zip(documents.iter().cycle()).map(|(text, document)| {
            document.put(NewVersion { expected: Expected::Number(round), ..new_version(text) })
        });
        let outcomes = join_all(racing).await;
        let winners: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()).collect();
        let [winners] = winners.as_slice() else { panic!("round {round}: {} won", winners.len()) };
        assert_eq!(winners.number, round + 1);
        for outcome in outcomes.iter().filter(|outcome| outcome.is_err()) {
            let conflict = PutError::Conflict { found: Some((*winners).clone()) };
            assert_eq!(outcome, &Err(conflict));
        }
        assert_eq!(latest(&documents[0]).await.unwrap().version, **winners);
    }
    let stale_put =
        documents[0].put(NewVersion { expected: Expected::Number(0), ..new_version("") }).await;
    let expected_text = "another version was expected, found 20 by \"ann\"";
    assert_eq!(stale_put.unwrap_err().to_string(), expected_text);
    let empty = RedisDocument::start(url.parse().unwrap(), "empty").await.unwrap();
    let unexpected_version =
        empty.put(NewVersion { expected: Expected::Number(7), ..new_version("") }).await;
    assert_eq!(unexpected_version, Err(PutError::Conflict { found: None }));
    assert_eq!(
        unexpected_version.unwrap_err().to_string(),
        "another version was expected, found none"
    );
}

#[tokio::test]
async fn restore_writes_a_lost_document_and_ignores_an_older_version() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let document = open_document(&server.url()).await;
    document.put(new_version("one")).await.unwrap();
    let first = latest(&document).await.unwrap();
    document.put(new_version("two")).await.unwrap();
    let second = latest(&document).await.unwrap();
    assert_eq!(document.restore(&first).await, Ok(false));
    assert_eq!(document.restore(&second).await, Ok(false));
    assert_eq!(latest(&document).await, Some(second.clone()));

    server.query::<()>(&["FLUSHALL"]);
    assert_eq!(document.latest(Some((2, &second.version.hash))).await, Ok(LatestVersion::Nothing));
    assert_eq!(document.restore(&first).await, Ok(true));
    assert_eq!(document.restore(&second).await, Ok(true));
    assert_eq!(latest(&document).await, Some(second.clone()));
    let versions = vec![second.version, first.version];
    assert_eq!(document.history(9).await, Ok(versions));
}

#[tokio::test]
async fn version_number_exceeds_the_given_minimum() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let document = open_document(&server.url()).await;
    for (above, number) in [(0, 1), (41, 42), (7, 43)] {
        assert_eq!(
            document.put(NewVersion { above, ..new_version("") }).await.unwrap().number,
            number
        );
    }
    let last = (1u64 << 53) - 1;
    assert_eq!(
        document.put(NewVersion { above: last - 1, ..new_version("") }).await.unwrap().number,
        last
    );
    // 2^53 - 1 is the last integer that Lua counts exactly. Nothing is written beyond it, and nothing is lost.
    for above in [0, last, last + 1, u64::MAX] {
        let rejection =
            document.put(NewVersion { above, ..new_version("too many") }).await.unwrap_err();
        let corrupt = matches!(rejection, PutError::Store(StoreError::Corrupt { .. }));
        assert!(
            corrupt && rejection.to_string().contains("end at 9007199254740991"),
            "{rejection}"
        );
    }
    let mut stored = latest(&document).await.unwrap();
    assert_eq!((stored.version.number, stored.text.as_str()), (last, ""));
    stored.version.number = u64::MAX;
    assert!(matches!(document.restore(&stored).await, Err(StoreError::Corrupt { .. })));
    assert_eq!(version_numbers(&document.history(9).await.unwrap()), [last, 43, 42, 1]);
}

#[tokio::test]
async fn last_fifty_versions_are_kept() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let document = open_document(&server.url()).await;
    for number in 1..=60u64 {
        let text = format!("text {number}");
        assert_eq!(document.put(new_version(&text)).await.unwrap().number, number);
    }
    let kept: Vec<u64> = (11..=60).rev().collect();
    assert_eq!(version_numbers(&document.history(usize::MAX).await.unwrap()), kept);
    assert_eq!(version_numbers(&document.history(3).await.unwrap()), [60, 59, 58]);
    assert_eq!(document.version(10).await, Ok(None));
    assert_eq!(document.version(11).await.unwrap().unwrap().text, "text 11");
    assert_eq!(server.query::<u64>(&["HLEN", DOCUMENT_KEY]), 101);
}

#[tokio::test]
async fn long_texts_evict_older_versions_and_use_a_separate_connection() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let store = crate::connect(server.url().parse().unwrap()).await;
    let document = store.document("rules");
    // Calls of the document leave at most one connection besides the store's.
    let connections = || server.info("connected_clients").unwrap().parse::<u32>().unwrap();
    let before = connections();
    for letter in ["a", "b", "c"] {
        document.put(new_version(&letter.repeat(24 << 20))).await.unwrap();
    }
    assert_eq!(connections(), before + 1);
    assert_eq!(version_numbers(&document.history(9).await.unwrap()), [3, 2]);
    assert_eq!(latest(&document).await.unwrap().text, "c".repeat(24 << 20));
    assert_eq!(document.version(1).await, Ok(None));
    let too_long = document.put(new_version(&"d".repeat((64 << 20) + 1))).await.unwrap_err();
    let wanted = "a text must be at most 67108864 bytes, found 67108865";
    assert!(too_long.to_string().ends_with(wanted), "{too_long}");
    // The latest version is kept at any size.
    document.put(new_version(&"d".repeat(60 << 20))).await.unwrap();
    assert_eq!(version_numbers(&document.history(9).await.unwrap()), [4]);
}

#[tokio::test]
async fn corrupt_document_is_an_error_and_is_not_overwritten() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let document = open_document(&server.url()).await;
    document.put(new_version("rules: []")).await.unwrap();
    let corrupting_commands: [&[&str]; 7] = [
        &["HSET", DOCUMENT_KEY, "t:1", "rules: {}"],
        &["HDEL", DOCUMENT_KEY, "t:1"],
        &["HSET", DOCUMENT_KEY, "v:1", "no metadata"],
        &["HDEL", DOCUMENT_KEY, "v:1"],
        &["HSET", DOCUMENT_KEY, "latest", "many"],
        &["HSET", DOCUMENT_KEY, "latest", "9007199254740993"],
        &["SET", DOCUMENT_KEY, "a text"],
    ];
    for command in corrupting_commands {
        server.query::<redis::Value>(command);
        let read = document.latest(None).await;
        assert!(matches!(read, Err(StoreError::Corrupt { .. })), "{command:?}: {read:?}");
    }
    let put = document.put(new_version("rules: {}")).await;
    assert!(matches!(put, Err(PutError::Store(StoreError::Corrupt { .. }))), "{put:?}");
    assert_eq!(server.query::<String>(&["GET", DOCUMENT_KEY]), "a text");
    server.query::<()>(&["FLUSHALL"]);
    server.query::<()>(&["HSET", DOCUMENT_KEY, "latest", "many"]);
    let put = document.put(new_version("rules: {}")).await.unwrap_err();
    let wanted = "its latest version must be a number up to 9007199254740991";
    assert!(put.to_string().contains(wanted), "{put}");
}

#[tokio::test]
async fn report_is_readable_until_its_ttl_ends() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let (one, other) = (open_document(&server.url()).await, open_document(&server.url()).await);
    let hour = Duration::from_secs(3_600);
    assert_eq!(one.reports().await, Ok(Vec::new()));
    one.report("b:1", "old text", hour).await.unwrap();
    let before = server.time_micros();
    one.report("b:1", "version 7\u{0}, \nall well", hour).await.unwrap();
    one.report("a:1", "", hour).await.unwrap();
    one.report("c:1", "expires soon", Duration::from_millis(1)).await.unwrap();
    let two_reports_remain = async {
        loop {
            let reports = other.reports().await.unwrap();
            if reports.len() == 2 {
                return reports;
            }
        }
    };
    let reports = timeout(WAIT_TIMEOUT, two_reports_remain).await.unwrap();
    let report_texts: Vec<_> = reports.iter().map(|(node, text, _)| (&**node, &**text)).collect();
    assert_eq!(report_texts, [("a:1", ""), ("b:1", "version 7\u{0}, \nall well")]);
    let range = Timestamp::from_micros(before)..=Timestamp::from_micros(server.time_micros());
    assert!(reports.iter().all(|(_, _, at)| range.contains(at)), "{reports:?} not in {range:?}");
    // The next report removes an expired one, and the key expires with the last report.
    let key = format!("{DOCUMENT_KEY}:reports");
    one.report("a:1", "still here", Duration::from_millis(1)).await.unwrap();
    assert_eq!(server.query::<u32>(&["HLEN", &key]), 2);
    let ttl_millis = server.query::<i64>(&["PTTL", &key]);
    assert!(0 < ttl_millis && ttl_millis <= 3_600_001, "{ttl_millis}");
}
