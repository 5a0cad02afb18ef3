//! A pipeline has the same replies and effects as its commands one at a time, without batches.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_core::{HeaderStyle, Timestamp};
use tidegate_limiter::block::{BlockAction, BlockList, BlockOrigin, Entry, Reason};
use tidegate_limiter::{Limiter, ManualClock, MemoryStore};
use tidegate_redis::Secret;
use tidegate_rules::RuleSet;
use tidegate_service::service::internal_rules;
use tidegate_service::stats::CounterSample;
use tidegate_service::store::AnyStore;
use tidegate_service::top::RankBy;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

use super::*;
use crate::resp::auth::RespAuth;

const RULES: &str = "
rules:
  - {name: api, per: [user], limit: 4 per minute}
  - {name: login, per: ['user | ip'], limit: 2 per hour}
  - {name: queue, algorithm: leaky_bucket, per: [user], limit: 2 per second, queue: 3}
  - {name: window, algorithm: fixed_window, per: [user], limit: 3 per minute}
  - {name: trial, per: [user], limit: 1 per hour, mode: shadow}
  - {name: tiers, per: [user], limit: 2 per minute, tiers: {by: plan, limits: {pro: 5 per minute}}}
  - {name: strict, per: [user], limit: 1 per hour, penalty: {after: 3, within: 1m, block: 1m}}
  - {name: all, limit: 9 per hour}
";

/// One command in two forms.
#[derive(Clone, Debug)]
struct TestCommand {
    /// As client libraries send it.
    array: Vec<u8>,
    /// As a line, which is never run in a batch.
    line: Vec<u8>,
}

fn encode(words: &[&str]) -> TestCommand {
    let mut array = format!("*{}\r\n", words.len()).into_bytes();
    let mut line = Vec::new();
    for word in words {
        array.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
        line.extend(format!("'{word}' ").bytes());
    }
    line.extend(b"\r\n");
    TestCommand { array, line }
}

/// Returns input that has only one form.
fn raw(bytes: &[u8]) -> TestCommand {
    TestCommand { array: bytes.to_vec(), line: bytes.to_vec() }
}

/// Generates a command, mostly a check.
fn command() -> impl Strategy<Value = TestCommand> {
    let rule = prop::sample::select(vec![
        "api", "api", "api", "login", "queue", "window", "trial", "tiers", "strict", "all", "none",
    ]);
    let client = || prop::sample::select(vec!["a", "a", "b", "c", "", r"\x41", "\u{e9}"]);
    let cost = prop::sample::select(vec!["1", "1", "2", "0", "9", "-1", "x"]);
    let check =
        (rule, client(), prop::option::of(cost.clone())).prop_map(|(rule, client, cost)| {
            let words: Vec<&str> = ["tg.check", rule, client].into_iter().chain(cost).collect();
            encode(&words)
        });
    let limit = prop::sample::select(vec![["2", "1", "60"], ["0", "5", "1"], ["x", "1", "1"]]);
    let throttle = (client(), limit, prop::option::of(cost)).prop_map(|(key, limit, cost)| {
        let words = ["CL.THROTTLE", key].into_iter().chain(limit).chain(cost);
        encode(&words.collect::<Vec<&str>>())
    });
    let other = prop::sample::select(vec![
        encode(&["PING"]),
        encode(&["MULTI"]),
        encode(&["EXEC"]),
        encode(&["DISCARD"]),
        encode(&["RESET"]),
        encode(&["AUTH", "secret"]),
        encode(&["HELLO", "3"]),
        encode(&["NOPE", "a"]),
        encode(&["TG.CHECK"]),
        encode(&["TG.CHECK", "api", "1", "user", "a"]),
        raw(b"TG.CHECK api a\r\n"),
        raw(b"cl.throttle 'a' 2 1 60\r\n"),
        raw(b"*0\r\n"),
        raw(b"\r\n"),
    ]);
    let broken = prop::sample::select(vec![
        encode(&["QUIT"]),
        raw(b"*1\r\n:1\r\n"),
        raw(b"POST / HTTP/1.1\r\n"),
    ]);
    prop_oneof![40 => check, 20 => throttle, 10 => other, 1 => broken]
}

/// The replies to the input and the state of the service afterwards.
#[derive(Debug, PartialEq)]
struct Effects {
    replies: String,
    counters: CounterSample,
    /// The number of checks and of denials of each client, by rank.
    ranking: Vec<u64>,
}

/// The server and its client in one test.
#[derive(Clone, Copy, Debug)]
struct TestSetup<'p> {
    password: Option<&'p Secret>,
    /// The effect of the block list on client `a`; `None` if the list is empty.
    listed: Option<BlockAction>,
}

/// Adds client `a` to the block list.
fn list_client(blocks: &BlockList, action: BlockAction) {
    let now = Timestamp::EPOCH;
    let entry = Entry {
        subject: blocks.client("user", "a").unwrap(),
        action,
        until: Timestamp::from_secs(u64::MAX / 1_000_000),
        reason: Reason::new("test").unwrap(),
        origin: BlockOrigin::Operator,
        added: now,
    };
    blocks.add(entry, now).unwrap();
}

/// Runs the input of one connection, which arrives in these pieces.
async fn run_pieces(pieces: &[Vec<u8>], setup: TestSetup<'_>) -> Effects {
    let time = ManualClock::default();
    let store = Arc::new(AnyStore::Memory(Arc::new(MemoryStore::new(time.clock()))));
    let rules = RuleSet::parse("", RULES).unwrap();
    let rules = rules.with_internal(internal_rules().unwrap()).unwrap();
    let limiter = Limiter::builder().rules(rules).clock(time.clock()).store(store).build();
    if let Some(action) = setup.listed {
        list_client(limiter.blocks(), action);
    }
    let service = Service::new(limiter, HeaderStyle::default());
    let auth_failures = AuthFailures::new("resp", time.clock(), Arc::default());
    let activity = Activity::unwatched();

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = listener.local_addr().unwrap();
    let stream = Stream::Plain(TcpStream::connect(peer).await.unwrap());
    let context = ConnectionContext {
        service: &service,
        auth_failures: &auth_failures,
        activity: &activity,
        peer,
    };
    let session = RespSession::new(1, RespAuth::new(setup.password));
    let mut connection = RespConnection::new(stream, context, session);
    for piece in pieces {
        connection.input.extend_from_slice(piece);
        if connection.run_commands().await == NextAction::Close {
            break;
        }
    }
    let replies = connection.replies.as_bytes().escape_ascii().to_string();
    let counters = service.stats().counters.sample(&service.active_rules());
    let ranking = [RankBy::Traffic, RankBy::Denials].map(|by| {
        let ranked = service.stats().top.ranking(by, None, 100, time.now());
        ranked.into_iter().map(|ranked| ranked.count)
    });
    Effects { replies, counters, ranking: ranking.into_iter().flatten().collect() }
}

proptest! {
    #[test]
    fn pipeline_has_the_effects_of_its_commands_one_at_a_time(
        commands in vec(command(), 1..60),
        cuts in vec(any::<prop::sample::Index>(), 0..4),
        with_password: bool,
        listed in prop::sample::select(vec![None, Some(BlockAction::Block), Some(BlockAction::Allow)]),
    ) {
        let secret = Secret::from("secret");
        let setup = TestSetup { password: with_password.then_some(&secret), listed };
        let arrays: Vec<Vec<u8>> = commands.iter().map(|command| command.array.clone()).collect();
        let lines: Vec<Vec<u8>> = commands.into_iter().map(|command| command.line).collect();
        let bytes = arrays.concat();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces: Vec<Vec<u8>> =
            cuts.windows(2).map(|cut| bytes[cut[0]..cut[1]].to_vec()).collect();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let single = run_pieces(&lines, setup).await;
            prop_assert_eq!(&run_pieces(&arrays, setup).await, &single);
            prop_assert_eq!(&run_pieces(&[bytes], setup).await, &single);
            prop_assert_eq!(&run_pieces(&pieces, setup).await, &single);
            Ok(())
        })?;
    }
}
