use proptest::prelude::*;
use tidegate_core::{HeaderStyle, Request};
use tidegate_limiter::{Limiter, ManualClock, MemoryStore};
use tidegate_rules::RuleSet;

use super::*;

const RULES: &str = "
rules:
  - {name: exports, match: {path: /exports}, per: [user], limit: 2 in flight, hold: 30s}
  - {name: all-exports, match: {path: /exports}, limit: 3 in flight, hold: 10s}
  - {name: api, per: [user], limit: 100 per hour}
  - {name: closed, match: {path: /closed}, limit: 0 per hour}
  - {name: tried, match: {path: /closed}, limit: 5 in flight, mode: shadow}
";

struct Scene {
    time: ManualClock,
    service: Service,
}

impl Scene {
    fn new(rules: &str) -> Self {
        let time = ManualClock::default();
        let store = Arc::new(AnyStore::Memory(Arc::new(MemoryStore::new(time.clock()))));
        let rules = RuleSet::parse("rules.yaml", rules).unwrap();
        let limiter = Limiter::builder().rules(rules).clock(time.clock()).store(store).build();
        Self { time, service: Service::new(limiter, HeaderStyle::default()) }
    }

    async fn acquire(&self, user: &str, path: &str) -> Acquired {
        let request = Request::new().with("user", user).unwrap().with("path", path).unwrap();
        self.service.acquire(Protocol::Http, Call { request, ..Call::default() }).await.unwrap()
    }

    /// The name of slots that were taken and handed over.
    async fn hold(&self, user: &str) -> Option<String> {
        let taken = self.acquire(user, "/exports").await.slot?;
        taken.way.handed_over();
        Some(taken.name)
    }

    /// What is left of a rule for a client.
    async fn left(&self, rule: &str, user: &str) -> u64 {
        let request = Request::new().with("user", user).unwrap().cost(0);
        let call = Call { rule: Some(rule.into()), request, ..Call::default() };
        let reply = self.service.check(Protocol::Http, call).await.unwrap();
        reply.decision.rule_outcomes()[0].outcome.remaining
    }

    async fn renew(&self, name: &str) -> Result<(usize, Span), CallStatus> {
        let renewed = self.service.renew(Protocol::Http, name).await;
        renewed.map(|renewed| (renewed.held, renewed.hold)).map_err(|fault| fault.status)
    }

    async fn release(&self, name: &str) -> Result<usize, CallStatus> {
        self.service.release(Protocol::Http, name).await.map_err(|fault| fault.status)
    }
}

#[tokio::test]
async fn slots_of_all_rules_are_released_together_and_once() {
    let scene = Scene::new(RULES);
    let (one, two) = (scene.hold("alice").await.unwrap(), scene.hold("alice").await.unwrap());
    assert_ne!(one, two);
    assert_eq!(scene.hold("alice").await, None);
    assert_eq!((scene.left("exports", "alice").await, scene.left("all-exports", "").await), (0, 1));
    assert_eq!(scene.release(&one).await, Ok(2));
    assert_eq!(scene.release(&one).await, Ok(0), "once is all");
    assert_eq!((scene.left("exports", "alice").await, scene.left("all-exports", "").await), (1, 2));
    assert_eq!(scene.left("api", "alice").await, 98, "what was spent per time stays spent");
    assert_eq!(scene.release(&two).await, Ok(2));
    assert_eq!((scene.left("exports", "alice").await, scene.left("all-exports", "").await), (2, 3));
}

#[tokio::test]
async fn slots_are_held_while_they_are_renewed_and_count_again_when_renewed_late() {
    let scene = Scene::new(RULES);
    let name = scene.hold("alice").await.unwrap();
    for _ in 0..10 {
        scene.time.advance(Span::from_secs(9));
        assert_eq!(scene.renew(&name).await, Ok((2, Span::from_secs(10))), "the shorter of two");
    }
    scene.time.advance(Span::from_secs(10));
    assert_eq!(scene.left("all-exports", "").await, 3);
    assert_eq!(scene.left("exports", "alice").await, 1, "its hold is longer");
    assert_eq!(scene.renew(&name).await, Ok((2, Span::from_secs(10))));
    assert_eq!(scene.left("all-exports", "").await, 2);
    assert_eq!(scene.release(&name).await, Ok(2));
    assert_eq!(scene.renew(&name).await, Err(CallStatus::Gone));
    assert_eq!(scene.release(&name).await, Ok(0));
}

#[tokio::test]
async fn slots_that_are_not_handed_over_are_free_again() {
    let scene = Scene::new(RULES);
    for _ in 0..10 {
        let acquired = scene.acquire("alice", "/exports").await;
        assert_eq!(acquired.slot.as_ref().unwrap().hold, Span::from_secs(10));
        drop(acquired);
    }
    assert_eq!((scene.left("exports", "alice").await, scene.left("all-exports", "").await), (2, 3));
}

#[tokio::test]
async fn who_is_denied_or_counted_by_no_such_rule_holds_nothing() {
    let scene = Scene::new(RULES);
    let other = scene.acquire("alice", "/orders").await;
    assert!(other.reply.decision.is_allowed() && other.slot.is_none());
    let denied = scene.acquire("alice", "/closed").await;
    assert!(!denied.reply.decision.is_allowed() && denied.slot.is_none());
    assert_eq!(scene.left("tried", "alice").await, 5, "nor does a rule that only counts");
}

#[tokio::test]
async fn more_rules_than_a_name_has_room_for_are_refused_and_nothing_is_charged() {
    let rule = |number| format!("  - {{name: r{number}, limit: 5 in flight}}\n");
    let rules = |count| format!("rules:\n{}", (0..count).map(rule).collect::<String>());
    let most = Scene::new(&rules(SlotTokenCipher::MAX_SLOTS));
    let name = most.hold("alice").await.unwrap();
    assert_eq!(most.release(&name).await, Ok(SlotTokenCipher::MAX_SLOTS));
    let scene = Scene::new(&rules(SlotTokenCipher::MAX_SLOTS + 1));
    let fault = scene.service.acquire(Protocol::Http, Call::default()).await.unwrap_err();
    assert_eq!(
        fault.to_string(),
        "rules: found 33 rules that count what is in flight, wanted at most 32 for one request"
    );
    assert_eq!(scene.left("r0", "").await, 5);
}

#[tokio::test]
async fn what_was_not_given_out_here_is_refused_and_not_shown() {
    let (scene, elsewhere) = (Scene::new(RULES), Scene::new(RULES));
    let name = elsewhere.hold("alice").await.unwrap();
    let told = |fault: CallError| (fault.status, fault.to_string());
    let refused = told(scene.service.release(Protocol::Http, &name).await.unwrap_err());
    let wanted = format!(
        "slot: found a text of {} bytes that was not given out here, wanted the slot of an acquire",
        name.len()
    );
    assert_eq!(refused, (CallStatus::Invalid, wanted.clone()));
    assert_eq!(told(scene.service.renew(Protocol::Http, &name).await.unwrap_err()).1, wanted);
    assert_eq!(scene.release("").await, Err(CallStatus::Invalid));
}

proptest! {
    #[test]
    fn whatever_is_released_or_renewed_nobody_else_loses_a_slot(
        words in proptest::collection::vec("[A-Za-z0-9_-]{0,90}", 1..8),
        places in proptest::collection::vec(any::<prop::sample::Index>(), 1..8),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let scene = Scene::new(RULES);
            let name = scene.hold("alice").await.unwrap();
            let bent = places.iter().map(|place| {
                let mut bytes = name.clone().into_bytes();
                let at = place.index(bytes.len());
                bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
                String::from_utf8(bytes).unwrap()
            });
            for word in words.iter().cloned().chain(bent) {
                assert!(scene.renew(&word).await.is_err());
                assert!(scene.release(&word).await.is_err());
            }
            assert_eq!(scene.left("exports", "alice").await, 1);
            assert_eq!(scene.release(&name).await, Ok(2));
        });
    }
}
