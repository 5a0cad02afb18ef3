//! What one node has of one client's limit, and what it has to tell about it.
//!
//! The node's side of `docs/decisions/0011-leases.md`. Time is an argument, and nothing is sent here: a
//! whole fleet runs inside a test.

use smallvec::SmallVec;
use tidegate_core::hold::{Ask, Granted, HoldId, Report};
use tidegate_core::{Limit, Outcome, Span, Timestamp, Verdict};

use super::demand::Demand;

/// How long a hold may be used. A client of a node that crashed waits so long for its tokens.
pub const LIFE: Span = Span::from_secs(2);
/// After how long without a check what is left is given back.
const IDLE: Span = Span::from_millis(500);
/// Most holds of one client at one node: one in use, one to follow, and some that are over and not yet
/// told.
const MOST: usize = 6;

/// Longest that a denial is remembered.
const DENIED: Span = Span::SECOND;
/// Shortest and longest pause of a client for which there is less than it wants.
const PAUSE: (Span, Span) = (Span::from_millis(1), Span::from_millis(250));
/// As many tokens should a question bring, if the limit is large enough for that.
const WORTH: u64 = 64;
/// A client of which fewer are used in a second is asked for each time.
pub const FEW: u64 = 8;

/// The tokens that this node holds for one client.
#[derive(Debug)]
pub struct Tab {
    /// Nothing is held for a client that uses fewer than so many in a second.
    few: u64,
    /// Oldest first, which is also the order of use.
    leases: SmallVec<[Lease; 2]>,
    demand: Demand,
    /// The question under way, if there is one.
    asked: Option<Asked>,
    /// When a check was last decided here.
    used: Timestamp,
    /// How much the last grant was, to know when most of it is gone.
    granted: u64,
    /// When the last question was asked that was answered.
    last_asked: Timestamp,
    /// Whether most of the limit was free then.
    plenty: bool,
    /// What the client is told without asking.
    denied: Option<Denied>,
}

/// A denial, which holds for whatever costs as much.
#[derive(Clone, Copy, Debug)]
struct Denied {
    cost: u64,
    outcome: Outcome,
    asked: Timestamp,
    until: Timestamp,
    /// There is less than the client uses: more is fetched while it is refused, so that nobody waits.
    scarce: bool,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    id: HoldId,
    spent: u64,
    /// How often it was told, heard or not. What was told can't be taken back.
    tellings: u32,
    left: u64,
    /// Until when it may be used, by this node's clock.
    until: Timestamp,
    /// Nothing more is spent from it, and the store has not confirmed that it knows.
    closed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    id: HoldId,
    at: Timestamp,
    cost: u64,
    want: u64,
}

/// Tokens that were taken: they can be put back where they come from, and nowhere else.
///
/// In another hold they would be worth more. It may be of a later window, and the store may already
/// have begun to refill what it was told is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    id: HoldId,
    /// How often the hold had been told.
    tellings: u32,
    amount: u64,
}

/// What a tab says to a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Decided here.
    Yes {
        /// How many tokens are left here.
        left: u64,
        /// What can be put back: of a cost that took several holds, what came from the last.
        slice: Slice,
    },
    /// The store has to be asked.
    No,
}

impl Default for Tab {
    fn default() -> Self {
        Self::new(FEW)
    }
}

impl Tab {
    /// Nothing yet, and nothing is held while fewer than so many are used in a second.
    #[must_use]
    pub fn new(few: u64) -> Self {
        let (since, none) = (Timestamp::EPOCH, None);
        Self {
            few,
            leases: SmallVec::new(),
            demand: Demand::default(),
            asked: None,
            used: since,
            granted: 0,
            last_asked: since,
            plenty: true,
            denied: none,
        }
    }

    /// Takes `cost` from what is held, if it is there.
    pub fn take(&mut self, now: Timestamp, cost: u64) -> Taken {
        self.used = now;
        self.demand.note(now, cost);
        let left = self.left(now);
        if cost > left {
            return Taken::No;
        }
        let mut open = cost;
        for lease in self.leases.iter_mut().filter(|lease| lease.is_usable(now)) {
            let part = open.min(lease.left);
            lease.left -= part;
            lease.spent += part;
            open -= part;
            if open == 0 {
                let Lease { id, tellings, .. } = *lease;
                let slice = Slice { id, tellings, amount: part };
                return Taken::Yes { left: left - cost, slice };
            }
        }
        Taken::No
    }

    /// The denial of a check that need not ask: one that cost no more was denied a moment ago, or there
    /// is so little left that it is fetched in fewer and larger parts.
    ///
    /// The flag says that it is time to ask again, while this and others are refused.
    #[must_use]
    pub fn refusal(&mut self, now: Timestamp, cost: u64) -> Option<(Outcome, bool)> {
        let denied = self.denied.filter(|denied| cost >= denied.cost)?;
        let over = now >= denied.until;
        if over && !(denied.scarce && self.demand.ahead(now, self.few) > 0) {
            return None;
        }
        let (passed, mut outcome) = (now.since(denied.asked), denied.outcome);
        let pause = denied.until.since(now);
        let wait =
            outcome.retry_after().map_or(pause, |wait| wait.saturating_sub(passed).max(pause));
        outcome.reset_after = outcome.reset_after.saturating_sub(passed);
        outcome.verdict = Verdict::Deny { retry_after: Some(wait.max(Span::MICROSECOND)) };
        Some((outcome, over && !self.is_asking()))
    }

    /// Gives back what was taken a moment ago, if its lease can still be used and nobody was told.
    pub fn put_back(&mut self, now: Timestamp, slice: &Slice) {
        let same = |lease: &&mut Lease| lease.id == slice.id && lease.tellings == slice.tellings;
        if let Some(lease) = self.leases.iter_mut().find(same).filter(|it| it.is_usable(now)) {
            lease.left += slice.amount;
            lease.spent -= slice.amount;
        }
    }

    /// How many tokens can be taken here.
    #[must_use]
    pub fn left(&self, now: Timestamp) -> u64 {
        let usable = self.leases.iter().filter(|lease| lease.is_usable(now));
        usable.map(|lease| lease.left).fold(0, u64::saturating_add)
    }

    /// Whether a question is under way.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// Whether it is time to ask for more, so that nobody has to wait for it.
    #[must_use]
    pub fn is_low(&mut self, now: Timestamp) -> bool {
        // Of what is scarce, more is fetched when some has come back.
        let scarce = self.denied.is_some_and(|denied| now < denied.until);
        let low = self.granted > 0 && self.left(now) <= self.granted / 4;
        low && !scarce && !self.is_asking() && self.demand.ahead(now, self.few) > 0
    }

    /// A question with a cost, and about what else to hold: with all that is to be told. One at a
    /// time; what was asked before and not answered is given up.
    pub fn ask(&mut self, now: Timestamp, cost: u64, waiting: u64, id: HoldId, nodes: u64) -> Ask {
        self.retire(now);
        let ahead = self.demand.ahead(now, self.few);
        let room = self.leases.len() < MOST;
        let want = if room { ahead.max(waiting) } else { 0 };
        self.asked = Some(Asked { id, at: now, cost, want });
        // Of plenty not too much at once: what is spent begins to come back when that is told. Later half
        // of what there is, or some would always be left.
        let nodes = if self.plenty { nodes.max(4) } else { 1 };
        Ask { cost, want, id, owed: SmallVec::new(), reports: self.reports(), life: LIFE, nodes }
    }

    /// What the store answered to the question that asked for hold `id`, about this limit. Nothing
    /// changes if that is not the one that is under way: it was given up.
    pub fn answered(&mut self, id: HoldId, limit: &Limit, granted: &Granted) {
        let Some(Asked { at, cost, want, .. }) = self.asked.take_if(|asked| asked.id == id) else {
            return;
        };
        // All that was told is known there.
        self.leases.retain(|lease| !lease.closed);
        self.granted = granted.held;
        let since = at.since(std::mem::replace(&mut self.last_asked, at));
        let (outcome, held) = (granted.outcome, granted.held);
        self.plenty = outcome.remaining > limit.capacity() / 2;
        // Shortly before a window ends nothing can be held of it, however much is left: each check asks.
        let ending = held == 0 && outcome.remaining >= worth(limit);
        let scarce = want > held && held < worth(limit) && !ending;
        let pause = if scarce { pause(limit, held, since) } else { Span::ZERO };
        self.denied = match outcome.retry_after() {
            Some(wait) if cost > 0 => {
                let until = at + wait.max(pause).min(DENIED);
                // When the store has said how long, somebody waits for it: a window begins anew.
                let scarce = scarce && wait <= pause;
                Some(Denied { cost, outcome, asked: at, until, scarce })
            }
            _ if scarce => Some(Denied { cost: 0, outcome, asked: at, until: at + pause, scarce }),
            _ => None,
        };
        if want > 0 && granted.held > 0 {
            let until = at + granted.life;
            let (left, closed) = (granted.held, false);
            let lease = Lease { id, spent: 0, tellings: 0, left, until, closed };
            self.leases.push(lease);
        }
    }

    /// The question that asked for hold `id` has no answer, or none in time. What it may have been
    /// granted is not used; what it told is told again.
    pub fn lost(&mut self, id: HoldId) {
        if self.asked.take_if(|asked| asked.id == id).is_some() {
            // Whoever comes next asks, and is told what is wrong.
            (self.granted, self.denied) = (0, None);
        }
    }

    /// The question of a client that [left](Self::leave) has no answer. It is not asked again: what was
    /// held expires in the store.
    pub fn abandoned(&mut self, id: HoldId) {
        self.lost(id);
        self.leases.retain(|lease| !lease.closed);
    }

    /// What to tell the store about a client that does not come any more; nothing if there is nothing
    /// to tell. What is left is not used again.
    pub fn leave(&mut self, now: Timestamp, id: HoldId, nodes: u64) -> Option<Ask> {
        if self.is_asking() {
            return None;
        }
        self.leases.iter_mut().for_each(Lease::close);
        self.granted = 0;
        if self.leases.is_empty() {
            return None;
        }
        self.asked = Some(Asked { id, at: now, cost: 0, want: 0 });
        Some(Ask {
            cost: 0,
            want: 0,
            id,
            owed: SmallVec::new(),
            reports: self.reports(),
            life: LIFE,
            nodes,
        })
    }

    /// Whether the client has not come for a while.
    #[must_use]
    pub fn is_idle(&self, now: Timestamp) -> bool {
        now.since(self.used) >= IDLE
    }

    /// Whether there is nothing to remember.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.asked.is_none()
    }

    fn reports(&mut self) -> SmallVec<[Report; 2]> {
        let report = |lease: &mut Lease| {
            lease.tellings = lease.tellings.wrapping_add(1);
            Report { id: lease.id, spent: lease.spent, closed: lease.closed }
        };
        self.leases.iter_mut().map(report).collect()
    }

    /// Closes what is used up or over: it is told with the next question.
    fn retire(&mut self, now: Timestamp) {
        for lease in &mut self.leases {
            if lease.left == 0 || now >= lease.until {
                lease.close();
            }
        }
    }
}

/// How many tokens are worth a question: of a large limit many, of a small one a part.
fn worth(limit: &Limit) -> u64 {
    let capacity = limit.capacity();
    (capacity / 16).min(WORTH).max(capacity / 128).max(1)
}

/// How long a busy client waits before it asks for more of a limit that is nearly used up: until as much
/// as is worth a question has come back for it, if that goes on as it went since the last one.
fn pause(limit: &Limit, held: u64, since: Span) -> Span {
    let ever = PAUSE.1.as_micros();
    let since = u128::from(since.as_micros().min(ever)) * u128::from(worth(limit));
    let pause = since.checked_div(u128::from(held)).unwrap_or(u128::from(ever));
    let pause = Span::from_micros(u64::try_from(pause).unwrap_or(ever));
    // Not a large part of a window: what is not asked for in it is lost. Nor so long that a bucket fills.
    let window = limit.quota().window().as_micros();
    let most = if let Limit::TokenBucket(_) = limit {
        let (capacity, amount) = (limit.capacity(), limit.quota().amount().max(1));
        u128::from(window) * u128::from(capacity) / u128::from(amount) / 4
    } else {
        u128::from(window / 64)
    };
    let most = Span::from_micros(u64::try_from(most).unwrap_or(ever));
    pause.clamp(PAUSE.0, PAUSE.1).min(most)
}

impl Lease {
    fn is_usable(&self, now: Timestamp) -> bool {
        !self.closed && now < self.until
    }

    fn close(&mut self) {
        self.closed = true;
        self.left = 0;
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::hold::Holds;
    use tidegate_core::{Algorithm, Limit, Quota};

    use super::*;

    /// A store of one client, and time.
    struct Scene {
        limit: Limit,
        state: tidegate_core::State,
        holds: Holds,
        now: Timestamp,
        number: u32,
    }

    impl Scene {
        fn new(quota: Quota) -> Self {
            Self::of(Algorithm::TokenBucket, quota)
        }

        fn of(algorithm: Algorithm, quota: Quota) -> Self {
            let limit = Limit::new(algorithm, quota).unwrap();
            let (state, now) = (limit.fresh(), Timestamp::from_secs(1_000));
            Self { limit, state, holds: Holds::default(), now, number: 0 }
        }

        fn id(&mut self) -> HoldId {
            self.number += 1;
            HoldId { node: 1, number: self.number }
        }

        fn decide(&mut self, ask: &Ask) -> Granted {
            self.limit.ask(&mut self.state, &mut self.holds, self.now, ask)
        }

        /// One check of cost 1: whether it passed, and whether the store was asked.
        fn check(&mut self, tab: &mut Tab) -> (bool, bool) {
            if let Taken::Yes { .. } = tab.take(self.now, 1) {
                return (true, false);
            }
            match tab.refusal(self.now, 1) {
                Some((_, false)) => return (false, false),
                Some((_, true)) => {
                    self.fetch(tab);
                    return (false, true);
                }
                None => {}
            }
            let (now, id) = (self.now, self.id());
            let ask = tab.ask(now, 1, 0, id, 1);
            let granted = self.decide(&ask);
            tab.answered(ask.id, &self.limit, &granted);
            (granted.outcome.is_allowed(), true)
        }

        fn fetch(&mut self, tab: &mut Tab) {
            let (now, id) = (self.now, self.id());
            let ask = tab.ask(now, 0, 0, id, 1);
            let granted = self.decide(&ask);
            tab.answered(ask.id, &self.limit, &granted);
        }
    }

    #[test]
    fn a_busy_client_asks_seldom_and_gets_what_the_limit_allows() {
        let (mut scene, mut tab) = (Scene::new(Quota::per_second(10_000)), Tab::default());
        let (mut passed, mut asked) = (0, 0);
        for _ in 0..200_000 {
            let (yes, question) = scene.check(&mut tab);
            passed += u64::from(yes);
            asked += u64::from(question);
            scene.now = scene.now + Span::from_micros(50);
        }
        // Ten seconds at twice the limit: the burst, and ten times the rate.
        assert!((108_000..=110_000).contains(&passed), "{passed}");
        assert!(asked <= 200_000 / 100, "{asked} questions for {passed} passed");
    }

    #[test]
    fn a_window_that_ends_refuses_nobody_while_there_is_plenty_left() {
        for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
            let (mut scene, mut tab) =
                (Scene::of(algorithm, Quota::per_second(2_000)), Tab::default());
            for check in 0..3_000 {
                assert!(scene.check(&mut tab).0, "{algorithm}: {check}");
                scene.now = scene.now + Span::from_millis(1);
            }
        }
    }

    #[test]
    fn a_client_that_comes_seldom_costs_one_question_each_and_holds_nothing() {
        let (mut scene, mut tab) = (Scene::new(Quota::per_hour(10)), Tab::default());
        for _ in 0..5 {
            assert_eq!(scene.check(&mut tab), (true, true));
            assert!(scene.holds.is_empty() && tab.is_empty());
            scene.now = scene.now + Span::from_secs(1_800);
        }
    }

    #[test]
    fn what_is_over_is_not_used_and_what_is_left_is_given_back() {
        let (mut scene, mut tab) = (Scene::new(Quota::per_day(1_000)), Tab::default());
        while tab.left(scene.now) == 0 {
            scene.check(&mut tab);
        }
        let left = tab.left(scene.now);
        assert_eq!(scene.holds.held(1_000), left);
        assert_eq!(tab.left(scene.now + LIFE), 0);
        assert_eq!(tab.take(scene.now + LIFE, 1), Taken::No);
        let (now, id) = (scene.now, scene.id());
        let leaving = tab.leave(now, id, 1).unwrap();
        let granted = scene.decide(&leaving);
        assert!(granted.outcome.remaining >= left);
        tab.answered(leaving.id, &scene.limit, &granted);
        assert!(scene.holds.is_empty() && tab.is_empty());
    }

    #[test]
    fn an_answer_that_was_lost_is_never_used() {
        let (mut scene, mut tab) = (Scene::new(Quota::per_day(1_000)), Tab::default());
        for _ in 0..10 {
            tab.take(scene.now, 1);
        }
        let (now, id) = (scene.now, scene.id());
        let ask = tab.ask(now, 1, 0, id, 1);
        let granted = scene.decide(&ask);
        assert!(granted.held > 0);
        tab.lost(id);
        assert_eq!(tab.take(scene.now, 1), Taken::No);
        // It comes after all, and nobody waits for it.
        tab.answered(id, &scene.limit, &granted);
        assert_eq!(tab.take(scene.now, 1), Taken::No);
    }

    #[test]
    fn what_is_put_back_can_be_taken_again_and_is_not_reported() {
        let (mut scene, mut tab) = (Scene::new(Quota::per_day(1_000)), Tab::default());
        while tab.left(scene.now) == 0 {
            scene.check(&mut tab);
        }
        let left = tab.left(scene.now);
        let slice = take(&mut tab, scene.now, 2);
        tab.put_back(scene.now, &slice);
        assert_eq!(tab.left(scene.now), left);
        let (now, id) = (scene.now, scene.id());
        let ask = tab.ask(now, 0, 0, id, 1);
        assert!(ask.reports.iter().all(|report| report.spent == 0), "{:?}", ask.reports);
        tab.lost(id);
    }

    fn take(tab: &mut Tab, now: Timestamp, cost: u64) -> Slice {
        match tab.take(now, cost) {
            Taken::Yes { slice, .. } => slice,
            Taken::No => panic!("{cost} of {} can't be taken", tab.left(now)),
        }
    }

    #[test]
    fn what_the_store_may_know_of_stays_spent() {
        let (mut scene, mut tab) = (Scene::new(Quota::per_day(1_000)), Tab::default());
        while tab.left(scene.now) == 0 {
            scene.check(&mut tab);
        }
        let (now, left) = (scene.now, tab.left(scene.now));
        let slice = take(&mut tab, now, 2);
        let id = scene.id();
        tab.ask(now, 0, 0, id, 1);
        // Nor in place of what somebody else took since then.
        take(&mut tab, now, 2);
        tab.put_back(now, &slice);
        assert_eq!(tab.left(now), left - 4);
    }

    #[test]
    fn what_came_from_one_hold_is_never_put_into_another() {
        let (mut scene, mut tab) = (Scene::new(Quota::per_second(1_000)), Tab::default());
        while tab.left(scene.now) == 0 {
            scene.check(&mut tab);
        }
        let old = take(&mut tab, scene.now, 1);
        scene.now = scene.now + LIFE;
        while tab.left(scene.now) == 0 {
            scene.check(&mut tab);
        }
        take(&mut tab, scene.now, 1);
        let left = tab.left(scene.now);
        tab.put_back(scene.now, &old);
        assert_eq!(tab.left(scene.now), left);
    }

    #[test]
    fn an_answer_to_another_question_is_not_used() {
        let (mut scene, mut tab) = (Scene::new(Quota::per_day(1_000)), Tab::default());
        (0..10).for_each(|_| assert_eq!(tab.take(scene.now, 1), Taken::No));
        let (now, first, second) = (scene.now, scene.id(), scene.id());
        let ask = tab.ask(now, 1, 0, first, 1);
        let granted = scene.decide(&ask);
        assert!(granted.held > 0);
        tab.ask(now, 1, 0, second, 1);
        tab.answered(first, &scene.limit, &granted);
        assert!(tab.is_asking() && tab.left(now) == 0);
    }
}
