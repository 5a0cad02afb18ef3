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
/// How often a node looks for leases to close.
pub const SWEEP_INTERVAL: Span = Span::from_millis(250);
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
    /// A lease is closed this long before it ends, see [`closing_time`].
    closing_time: Span,
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
    /// From when on it is closed and reported, so that the rest of it does not count as spent.
    close_at: Timestamp,
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
    /// What was taken in all, from this hold and others.
    cost: u64,
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
        Self::new(FEW, closing_time(Span::ZERO))
    }
}

impl Tab {
    /// Nothing yet, and nothing is held while fewer than so many are used in a second. Leases are
    /// [closed](closing_time) so long before they end.
    #[must_use]
    pub fn new(few: u64, closing_time: Span) -> Self {
        let (since, none) = (Timestamp::EPOCH, None);
        Self {
            few,
            closing_time,
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
        self.demand.request(now, cost);
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
                let slice = Slice { id, tellings, amount: part, cost };
                self.demand.admit(cost);
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
        if over && !(denied.scarce && self.demand.is_busy(now, self.few)) {
            return None;
        }
        self.demand.limit();
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
        self.revoke(slice.cost);
        let same = |lease: &&mut Lease| lease.id == slice.id && lease.tellings == slice.tellings;
        if let Some(lease) = self.leases.iter_mut().find(same).filter(|it| it.is_usable(now)) {
            lease.left += slice.amount;
            lease.spent -= slice.amount;
        }
    }

    /// Counts a request that was admitted a moment ago as denied after all, by another rule.
    pub fn revoke(&mut self, cost: u64) {
        self.demand.revoke(cost);
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

    /// Whether a lease has to be closed and reported before it ends.
    #[must_use]
    pub fn is_closing(&self, now: Timestamp) -> bool {
        self.leases.iter().any(|lease| lease.is_usable(now) && now >= lease.close_at)
    }

    /// Whether it is time to ask: for more, so that nobody has to wait for it, or to close a lease.
    #[must_use]
    pub fn is_due(&mut self, now: Timestamp) -> bool {
        // Of what is scarce, more is fetched when some has come back.
        let scarce = self.denied.is_some_and(|denied| now < denied.until);
        let low = self.granted > 0 && self.left(now) <= self.granted / 4;
        let wanting = low && !scarce && self.demand.is_busy(now, self.few);
        !self.is_asking() && (wanting || self.is_closing(now))
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
        if granted.outcome.is_allowed() {
            self.demand.admit(cost);
        } else if cost > 0 {
            self.demand.limit();
        }
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
            // Of a lease that is short, as at the end of a window, too little time would be left.
            let short = granted.life.as_micros() < 2 * self.closing_time.as_micros();
            let close_at = if short { until } else { until - self.closing_time };
            let (left, closed) = (granted.held, false);
            let lease = Lease { id, spent: 0, tellings: 0, left, until, close_at, closed };
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

    /// A question of a client that still comes, if one of its leases has to be closed: that reports it,
    /// frees the rest of it, and holds as much anew as the client uses.
    pub fn renew(&mut self, now: Timestamp, id: HoldId, nodes: u64) -> Option<Ask> {
        let due = self.is_closing(now) && !self.is_asking();
        due.then(|| self.ask(now, 0, 0, id, nodes))
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

    /// Closes what is used up, or over soon: it is told with the next question.
    fn retire(&mut self, now: Timestamp) {
        for lease in &mut self.leases {
            if lease.left == 0 || now >= lease.close_at {
                lease.close();
            }
        }
    }
}

/// How long before its end a lease is closed, so that the store has the report in time.
///
/// Two sweeps, of which one may be late, and the time that the store has to answer; at most half of the
/// life of a lease, or it could not be used. A lease whose life is shorter than twice this time, as at the
/// end of a window, is used until it ends.
#[must_use]
pub fn closing_time(store_timeout: Span) -> Span {
    let wanted = (2 * SWEEP_INTERVAL.as_micros()).saturating_add(store_timeout.as_micros());
    Span::from_micros(wanted.min(LIFE.as_micros() / 2))
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
                let due = tab.is_closing(self.now);
                if due {
                    self.fetch(tab);
                }
                return (true, due);
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

        /// One sweep of a node.
        fn sweep(&mut self, tab: &mut Tab) {
            let (now, id) = (self.now, self.id());
            let idle = tab.is_idle(now);
            let ask = if idle { tab.leave(now, id, 1) } else { tab.renew(now, id, 1) };
            if let Some(ask) = ask {
                let granted = self.decide(&ask);
                tab.answered(ask.id, &self.limit, &granted);
            }
        }

        /// Lets the time of a sweep interval pass, and sweeps if there is a sweeper.
        fn pass(&mut self, tab: &mut Tab, span: Span, sweeps: bool) {
            for _ in 0..span.as_micros() / SWEEP_INTERVAL.as_micros() {
                self.now = self.now + SWEEP_INTERVAL;
                if sweeps {
                    self.sweep(tab);
                }
            }
        }

        /// Lets time pass until a lease has to be closed.
        fn wait_for_closing(&mut self, tab: &Tab) {
            let end = self.now + LIFE;
            while !tab.is_closing(self.now) {
                assert!(self.now < end, "no lease is closed before it ends");
                self.now = self.now + Span::from_millis(10);
            }
        }

        /// Tokens that are neither spent nor held.
        fn free(&mut self) -> u64 {
            let id = self.id();
            let (owed, reports) = (SmallVec::new(), SmallVec::new());
            self.decide(&Ask { cost: 0, want: 0, id, owed, reports, life: LIFE, nodes: 1 })
                .outcome
                .remaining
        }

        /// Checks until there is a lease, and then so many times more.
        fn lease(&mut self, tab: &mut Tab, more: u64) -> u64 {
            let mut passed = 0;
            while tab.left(self.now) == 0 || passed < more {
                passed += u64::from(self.check(tab).0);
                self.now = self.now + Span::from_millis(1);
            }
            passed
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

    fn windowed(amount: u64) -> (Scene, Tab) {
        (Scene::of(Algorithm::FixedWindow, Quota::per_day(amount)), Tab::default())
    }

    #[test]
    fn a_lease_that_ends_soon_is_closed_and_its_rest_is_free_in_the_same_call() {
        let (mut scene, mut tab) = windowed(20_000);
        let passed = scene.lease(&mut tab, 500);
        assert!(tab.left(scene.now) > 0);
        let number = scene.id();
        assert_eq!(tab.renew(scene.now, number, 1), None, "too early");
        scene.now = scene.now + LIFE.saturating_sub(closing_time(Span::ZERO));
        let ask = tab.renew(scene.now, number, 1).unwrap();
        assert_eq!(tab.left(scene.now), 0, "closed");
        let told = scene.decide(&ask);
        assert_eq!(told.outcome.remaining, 20_000 - passed);
        tab.answered(ask.id, &scene.limit, &told);
        let live = scene.holds.iter().filter(|hold| hold.id != ask.id).count();
        assert_eq!(live, 0, "{:?}", scene.holds);
    }

    #[test]
    fn a_check_closes_a_lease_that_ends_soon() {
        let (mut scene, mut tab) = windowed(20_000);
        scene.lease(&mut tab, 500);
        scene.wait_for_closing(&tab);
        assert!(matches!(tab.take(scene.now, 1), Taken::Yes { .. }) && tab.is_due(scene.now));
        scene.fetch(&mut tab);
        assert!(!tab.is_closing(scene.now));
    }

    #[test]
    fn a_closed_lease_whose_report_is_lost_is_not_used_and_counts_as_spent() {
        let (mut scene, mut tab) = windowed(20_000);
        scene.lease(&mut tab, 500);
        let free = scene.free();
        scene.wait_for_closing(&tab);
        let number = scene.id();
        let ask = tab.renew(scene.now, number, 1).unwrap();
        tab.lost(ask.id);
        assert_eq!(tab.take(scene.now, 1), Taken::No);
        scene.now = scene.now + LIFE;
        assert_eq!(scene.free(), free);
        assert!(scene.holds.is_empty());
    }

    #[test]
    fn a_lease_that_is_short_is_used_until_it_ends() {
        let quota = Quota::per(20_000, Span::SECOND);
        let (mut scene, mut tab) = (Scene::of(Algorithm::FixedWindow, quota), Tab::default());
        scene.lease(&mut tab, 20);
        let left = tab.left(scene.now);
        scene.now = scene.now + Span::from_millis(700);
        assert!(!tab.is_closing(scene.now) && tab.left(scene.now) == left);
    }

    #[test]
    fn requests_that_another_rule_denies_leave_the_limit_nearly_untouched() {
        for sweeps in [true, false] {
            let (mut scene, mut tab) = windowed(20_000);
            let mut denied = 0;
            // Bursts with pauses that are too short for an idle client; leases end between two of them.
            for burst in 0..79 {
                for _ in 0..247 {
                    let taken = tab.take(scene.now, 1);
                    if let Taken::Yes { slice, .. } = taken {
                        if tab.is_due(scene.now) {
                            scene.fetch(&mut tab);
                        }
                        tab.put_back(scene.now, &slice);
                        denied += 1;
                        continue;
                    }
                    let (now, id) = (scene.now, scene.id());
                    let ask = tab.ask(now, 1, 0, id, 1);
                    let granted = scene.decide(&ask);
                    tab.answered(ask.id, &scene.limit, &granted);
                    let slip = granted.outcome.slip().unwrap();
                    let limit = scene.limit.clone();
                    assert!(limit.refund(&mut scene.state, now, &limit, &slip, 1));
                    tab.revoke(1);
                    denied += 1;
                }
                // Five sweeps in two bursts.
                scene.pass(&mut tab, SWEEP_INTERVAL, sweeps);
                scene.now = scene.now + Span::from_millis(180);
                if burst % 2 == 1 && sweeps {
                    scene.sweep(&mut tab);
                }
            }
            scene.now = scene.now + LIFE + LIFE;
            let free = scene.free();
            assert!(free >= 19_900, "{denied} denied, {free} of 20000 left, sweeps: {sweeps}");
        }
    }

    #[test]
    fn a_client_that_slows_down_to_one_per_second_loses_at_most_one_lease() {
        for (sweeps, pause) in [(true, 1_000), (false, 1_000), (true, 250), (false, 250)] {
            let (mut scene, mut tab) = windowed(20_000);
            let mut passed = scene.lease(&mut tab, 500);
            let lease = tab.left(scene.now);
            for _ in 0..20 {
                scene.pass(&mut tab, Span::from_millis(pause), sweeps);
                passed += u64::from(scene.check(&mut tab).0);
            }
            scene.now = scene.now + LIFE + LIFE;
            let lost = 20_000 - passed - scene.free();
            let most = if sweeps { 0 } else { lease };
            assert!(lost <= most, "{lost} lost, {lease} leased, sweeps: {sweeps}, {pause} ms");
        }
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
