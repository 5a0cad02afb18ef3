//! A text that a fleet shares, through real servers.

mod following;
mod places;

use std::time::Duration;

use futures_util::future::join_all;
use tidegate::{
    DocumentVersion, Draft, Edition, Expected, Latest, PutError, RedisConfig, RedisDocument,
    RedisStore, StoreError, Timestamp,
};
use tidegate_testkit::{Flavour, Redis, Tool, WAIT_TIMEOUT, lacking};
use tokio::time::timeout;

const NEEDED: [Tool; 1] = [Tool::Server(Flavour::Redis)];
/// Where a document called `rules` is kept.
const KEY: &str = "tg::{document:rules}";

fn config(url: &str) -> RedisConfig {
    let config: RedisConfig = url.parse().unwrap();
    config.with_connect_timeout(crate::CONNECT_TIMEOUT).unwrap()
}

async fn document(url: &str) -> RedisDocument {
    RedisDocument::start(url.parse().unwrap(), "rules").await.unwrap()
}

fn draft(text: &str) -> Draft<'_> {
    Draft { text, by: "ann", note: "a test", expected: Expected::Any, above: 0 }
}

async fn latest(document: &RedisDocument) -> Option<Edition> {
    match document.latest(None).await.unwrap() {
        Latest::Nothing => None,
        Latest::Other(edition) => Some(edition),
        Latest::Same => panic!("nothing was known"),
    }
}

fn numbers(versions: &[DocumentVersion]) -> Vec<u64> {
    versions.iter().map(|version| version.number).collect()
}

#[tokio::test]
async fn what_one_node_puts_another_reads() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let store = RedisStore::connect(config(&server.url())).await.unwrap();
    let (one, other) = (store.document("rules"), document(&server.url()).await);
    assert_eq!(one.latest(None).await, Ok(Latest::Nothing));
    assert_eq!(one.latest(Some((3, "aa"))).await, Ok(Latest::Nothing));
    assert_eq!((one.history(9).await, one.edition(1).await), (Ok(Vec::new()), Ok(None)));

    let before = server.time_micros();
    let text = "rules: [] # ü\u{0}\n";
    let first = one.put(Draft { by: "ann@laptop", note: "a \"start\"\n", ..draft(text) }).await;
    let first = first.unwrap();
    let hash = blake3::hash(text.as_bytes()).to_hex()[..16].to_owned();
    let at = first.at;
    assert!((before..=server.time_micros()).contains(&at.as_micros()), "{at:?}");
    let (by, note) = ("ann@laptop".to_owned(), "a \"start\"\n".to_owned());
    let bytes = u64::try_from(text.len()).unwrap();
    assert_eq!(first, DocumentVersion { number: 1, hash, at, by, note, bytes });

    let edition = Edition { version: first.clone(), text: text.to_owned() };
    assert_eq!(latest(&other).await, Some(edition.clone()));
    assert_eq!(other.latest(Some((1, &first.hash))).await, Ok(Latest::Same));
    for known in [(2, first.hash.as_str()), (1, "0000000000000000"), (0, "")] {
        assert_eq!(other.latest(Some(known)).await, Ok(Latest::Other(edition.clone())));
    }

    let second = other.put(draft("rules: {}")).await.unwrap();
    assert_eq!(one.history(9).await, Ok(vec![second.clone(), first]));
    assert_eq!(one.history(1).await, Ok(vec![second]));
    assert_eq!(one.edition(1).await, Ok(Some(edition)));
    assert_eq!((one.edition(3).await, one.edition(u64::MAX).await), (Ok(None), Ok(None)));
    // Another name is another document.
    assert_eq!(store.document("other").latest(None).await, Ok(Latest::Nothing));
}

#[tokio::test]
async fn of_those_who_replace_the_same_version_one_wins_and_the_others_are_told() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let url = server.url();
    let documents = join_all((0..8).map(|_| document(&url))).await;
    for round in 0..20 {
        let texts: Vec<String> = (0..32).map(|task| format!("{round} {task}")).collect();
        let racing = texts.iter().zip(documents.iter().cycle()).map(|(text, document)| {
            document.put(Draft { expected: Expected::Number(round), ..draft(text) })
        });
        let outcomes = join_all(racing).await;
        let won: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()).collect();
        let [won] = won.as_slice() else { panic!("round {round}: {} won", won.len()) };
        assert_eq!(won.number, round + 1);
        for outcome in outcomes.iter().filter(|outcome| outcome.is_err()) {
            let conflict = PutError::Conflict { found: Some((*won).clone()) };
            assert_eq!(outcome, &Err(conflict));
        }
        assert_eq!(latest(&documents[0]).await.unwrap().version, **won);
    }
    let stale = documents[0].put(Draft { expected: Expected::Number(0), ..draft("") }).await;
    let words = "another version was expected, found 20 by \"ann\"";
    assert_eq!(stale.unwrap_err().to_string(), words);
    let empty = RedisDocument::start(url.parse().unwrap(), "empty").await.unwrap();
    let early = empty.put(Draft { expected: Expected::Number(7), ..draft("") }).await;
    assert_eq!(early, Err(PutError::Conflict { found: None }));
    assert_eq!(early.unwrap_err().to_string(), "another version was expected, found none");
}

#[tokio::test]
async fn a_server_that_lost_the_document_gets_it_back_and_an_older_one_changes_nothing() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let document = document(&server.url()).await;
    document.put(draft("one")).await.unwrap();
    let first = latest(&document).await.unwrap();
    document.put(draft("two")).await.unwrap();
    let second = latest(&document).await.unwrap();
    assert_eq!(document.restore(&first).await, Ok(false));
    assert_eq!(document.restore(&second).await, Ok(false));
    assert_eq!(latest(&document).await, Some(second.clone()));

    server.query::<()>(&["FLUSHALL"]);
    assert_eq!(document.latest(Some((2, &second.version.hash))).await, Ok(Latest::Nothing));
    assert_eq!(document.restore(&first).await, Ok(true));
    assert_eq!(document.restore(&second).await, Ok(true));
    assert_eq!(latest(&document).await, Some(second.clone()));
    let versions = vec![second.version, first.version];
    assert_eq!(document.history(9).await, Ok(versions));
}

#[tokio::test]
async fn a_number_is_above_what_the_server_has_forgotten() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let document = document(&server.url()).await;
    for (above, number) in [(0, 1), (41, 42), (7, 43)] {
        assert_eq!(document.put(Draft { above, ..draft("") }).await.unwrap().number, number);
    }
    let last = (1u64 << 53) - 1;
    assert_eq!(document.put(Draft { above: last - 1, ..draft("") }).await.unwrap().number, last);
    // Lua can't count on: nothing is put, and nothing lost.
    for above in [0, last, last + 1, u64::MAX] {
        let refused = document.put(Draft { above, ..draft("too many") }).await.unwrap_err();
        let corrupt = matches!(refused, PutError::Store(StoreError::Corrupt { .. }));
        assert!(corrupt && refused.to_string().contains("end at 9007199254740991"), "{refused}");
    }
    let mut edition = latest(&document).await.unwrap();
    assert_eq!((edition.version.number, edition.text.as_str()), (last, ""));
    edition.version.number = u64::MAX;
    assert!(matches!(document.restore(&edition).await, Err(StoreError::Corrupt { .. })));
    assert_eq!(numbers(&document.history(9).await.unwrap()), [last, 43, 42, 1]);
}

#[tokio::test]
async fn the_last_fifty_versions_are_kept() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let document = document(&server.url()).await;
    for number in 1..=60u64 {
        let text = format!("text {number}");
        assert_eq!(document.put(draft(&text)).await.unwrap().number, number);
    }
    let kept: Vec<u64> = (11..=60).rev().collect();
    assert_eq!(numbers(&document.history(usize::MAX).await.unwrap()), kept);
    assert_eq!(numbers(&document.history(3).await.unwrap()), [60, 59, 58]);
    assert_eq!(document.edition(10).await, Ok(None));
    assert_eq!(document.edition(11).await.unwrap().unwrap().text, "text 11");
    assert_eq!(server.query::<u64>(&["HLEN", KEY]), 101);
}

#[tokio::test]
async fn long_texts_push_older_ones_out_and_travel_on_connections_of_their_own() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let config = config(&server.url());
    let store = RedisStore::connect(config).await.unwrap();
    let document = store.document("rules");
    // What it does without leaves no connection but the store's.
    let connections = || server.info("connected_clients").unwrap().parse::<u32>().unwrap();
    let before = connections();
    for letter in ["a", "b", "c"] {
        document.put(draft(&letter.repeat(24 << 20))).await.unwrap();
    }
    assert_eq!(connections(), before + 1);
    assert_eq!(numbers(&document.history(9).await.unwrap()), [3, 2]);
    assert_eq!(latest(&document).await.unwrap().text, "c".repeat(24 << 20));
    assert_eq!(document.edition(1).await, Ok(None));
    let too_long = document.put(draft(&"d".repeat((64 << 20) + 1))).await.unwrap_err();
    let wanted = "a text must be at most 67108864 bytes, found 67108865";
    assert!(too_long.to_string().ends_with(wanted), "{too_long}");
    // The latest stays, however long it is.
    document.put(draft(&"d".repeat(60 << 20))).await.unwrap();
    assert_eq!(numbers(&document.history(9).await.unwrap()), [4]);
}

#[tokio::test]
async fn what_is_no_document_is_an_error_and_stays_as_it_is() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let document = document(&server.url()).await;
    document.put(draft("rules: []")).await.unwrap();
    let broken: [&[&str]; 7] = [
        &["HSET", KEY, "t:1", "rules: {}"],
        &["HDEL", KEY, "t:1"],
        &["HSET", KEY, "v:1", "when and who"],
        &["HDEL", KEY, "v:1"],
        &["HSET", KEY, "latest", "many"],
        &["HSET", KEY, "latest", "9007199254740993"],
        &["SET", KEY, "a text"],
    ];
    for command in broken {
        server.query::<redis::Value>(command);
        let read = document.latest(None).await;
        assert!(matches!(read, Err(StoreError::Corrupt { .. })), "{command:?}: {read:?}");
    }
    let put = document.put(draft("rules: {}")).await;
    assert!(matches!(put, Err(PutError::Store(StoreError::Corrupt { .. }))), "{put:?}");
    assert_eq!(server.query::<String>(&["GET", KEY]), "a text");
    server.query::<()>(&["FLUSHALL"]);
    server.query::<()>(&["HSET", KEY, "latest", "many"]);
    let put = document.put(draft("rules: {}")).await.unwrap_err();
    let wanted = "its latest version must be a number up to 9007199254740991";
    assert!(put.to_string().contains(wanted), "{put}");
}

#[tokio::test]
async fn a_report_is_there_until_its_lifetime_is_over() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let (one, other) = (document(&server.url()).await, document(&server.url()).await);
    let hour = Duration::from_secs(3_600);
    assert_eq!(one.reports().await, Ok(Vec::new()));
    one.report("b:1", "old words", hour).await.unwrap();
    let before = server.time_micros();
    one.report("b:1", "version 7\u{0}, \nall well", hour).await.unwrap();
    one.report("a:1", "", hour).await.unwrap();
    one.report("c:1", "gone soon", Duration::from_millis(1)).await.unwrap();
    let gone = async {
        loop {
            let reports = other.reports().await.unwrap();
            if reports.len() == 2 {
                return reports;
            }
        }
    };
    let reports = timeout(WAIT_TIMEOUT, gone).await.unwrap();
    let said: Vec<_> = reports.iter().map(|(node, words, _)| (&**node, &**words)).collect();
    assert_eq!(said, [("a:1", ""), ("b:1", "version 7\u{0}, \nall well")]);
    let range = Timestamp::from_micros(before)..=Timestamp::from_micros(server.time_micros());
    assert!(reports.iter().all(|(_, _, at)| range.contains(at)), "{reports:?} not in {range:?}");
    // Nobody reads it any more: the next report takes it away, and the key goes with the last one.
    let key = format!("{KEY}:reports");
    one.report("a:1", "still here", Duration::from_millis(1)).await.unwrap();
    assert_eq!(server.query::<u32>(&["HLEN", &key]), 2);
    let left = server.query::<i64>(&["PTTL", &key]);
    assert!(0 < left && left <= 3_600_001, "{left}");
}
