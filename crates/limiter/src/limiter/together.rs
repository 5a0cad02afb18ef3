//! Several claims decided together: a door's request that asks about more than one client.

use std::sync::Arc;

use tidegate_core::{Decision, Limit, Request};

use super::deciding::{Ask, Asks, decision};
use super::failing::Verdicts;
use super::{Limiter, Receipt};
use crate::fleet::Takings;
use crate::store::{Answer, Charge, Refund, Store};

/// What is asked for one client of a request that may ask for several.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a, 'q> {
    /// Who asks, and what it costs; 0 only looks.
    pub request: &'a Request<'q>,
    /// What it is charged to.
    pub under: Under<'a>,
}

/// What a claim is charged to.
#[derive(Clone, Copy, Debug)]
pub enum Under<'a> {
    /// Every rule that matches the request.
    Matching,
    /// One rule, by its place in [`RuleSet::rules`](tidegate_core::RuleSet::rules), whether or not it
    /// matches.
    Rule(usize),
    /// The bucket that one rule has for the client, under a limit of the caller's.
    ///
    /// A bucket that was charged under another limit before starts with what it had
    /// ([`Limit::adopt`]): whoever changes a window's length to and fro should count by it as well.
    Limit(usize, &'a Arc<Limit>),
}

/// The questions of several claims, and what is known of them.
struct Board<'r> {
    asks: Vec<Ask<'r>>,
    verdicts: Verdicts,
    /// For each question, whether the store has not been asked it.
    unasked: Vec<bool>,
    /// What was taken in a way of its rule's own.
    taken: Takings,
}

impl Board<'_> {
    fn places(&self, wanted: impl Fn(usize, &Ask<'_>) -> bool) -> Vec<usize> {
        let places = 0..self.asks.len();
        places.filter(|place| wanted(*place, &self.asks[*place])).collect()
    }

    /// Whether a rule denies one of the claims that are wanted.
    fn denies(&self, wanted: impl Fn(usize) -> bool) -> bool {
        let mut found = self.verdicts.denying(&self.asks);
        found.any(|ask| wanted(ask.claim))
    }
}

impl<S: Store> Limiter<S> {
    /// Decides one claim, as [`check_together`](Self::check_together) does for several.
    ///
    /// # Panics
    /// The claim names a rule that is not there.
    pub async fn check_claim(&self, claim: Claim<'_, '_>) -> Decision {
        self.check_claim_with_receipt(claim).await.0
    }

    /// As [`check_claim`](Self::check_claim), with what it takes to undo it.
    ///
    /// # Panics
    /// The claim names a rule that is not there.
    pub async fn check_claim_with_receipt(&self, claim: Claim<'_, '_>) -> (Decision, Receipt) {
        if let Some(decision) = self.blocked(claim.request) {
            return (decision, Receipt::default());
        }
        let (decision, receipt) = self.decide(self.asks(&claim)).await;
        self.note_denials(claim.request, &decision);
        (decision, receipt)
    }

    /// Decides several claims together: all of them are charged, or none. One decision for each, about
    /// itself: a claim that would have fitted but was held back by another says allow.
    ///
    /// Claims that meet in one bucket add up; where two bring limits of their own to it, the first
    /// one's counts. Claims that cost nothing are looked at first. If one of those is denied, or the
    /// client of any claim is blocked, nothing is charged at all. A rule that is off allows, and so
    /// does one whose rollout leaves the client out.
    ///
    /// As a rule this takes one call of the store; a claim that costs nothing among others that do
    /// takes one more, and so does a denial that left other claims without an answer.
    ///
    /// # Panics
    /// A claim names a rule that is not there.
    pub async fn check_together(&self, claims: &[Claim<'_, '_>]) -> Vec<Decision> {
        if let [claim] = claims {
            return vec![self.check_claim(*claim).await];
        }
        let blocked: Vec<Option<Decision>> =
            claims.iter().map(|claim| self.blocked(claim.request)).collect();
        let mut board = self.board(claims, |claim| blocked[claim].is_none());
        let mut held = blocked.iter().any(Option::is_some);
        let looks = board.places(|_, ask| ask.cost == 0);
        self.put(&mut board, &looks, false).await;
        held |= board.denies(|_| true);
        let spends = board.places(|_, ask| ask.cost > 0);
        self.put(&mut board, &spends, held).await;
        if board.denies(|_| true) {
            self.put_back_detached(std::mem::take(&mut board.taken));
            self.give_back_charged(&board);
            self.complete(&mut board).await;
        }
        let decided = blocked.into_iter().enumerate().map(|(number, blocked)| {
            let found = || decision(&board.asks, &board.verdicts, number);
            blocked.unwrap_or_else(found)
        });
        let decisions: Vec<Decision> = decided.collect();
        for (claim, decision) in claims.iter().zip(&decisions) {
            self.note_denials(claim.request, decision);
        }
        decisions
    }

    /// What one claim asks of the store.
    pub(super) fn asks<'r>(&'r self, claim: &Claim<'r, '_>) -> Asks<'r> {
        let passes_by = |place: usize| !self.inner.rules.rules()[place].reaches(claim.request);
        match claim.under {
            Under::Matching => {
                let places = self.inner.rules.matching_places(claim.request);
                places.iter().map(|place| self.ask(*place, claim.request)).collect()
            }
            Under::Rule(place) | Under::Limit(place, _) if passes_by(place) => Asks::new(),
            Under::Rule(place) => [self.ask(place, claim.request)].into_iter().collect(),
            Under::Limit(place, limit) => {
                [self.ask_under(place, claim.request, limit)].into_iter().collect()
            }
        }
    }

    fn board<'r>(&'r self, claims: &[Claim<'r, '_>], wanted: impl Fn(usize) -> bool) -> Board<'r> {
        let mut asks: Vec<Ask<'r>> = Vec::new();
        for (number, claim) in claims.iter().enumerate().filter(|(number, _)| wanted(*number)) {
            for mut ask in self.asks(claim) {
                ask.claim = number;
                // A store can't count one bucket under two limits in one call.
                if let Some(first) = asks.iter().find(|first| first.key == ask.key) {
                    ask.limit = first.limit;
                }
                asks.push(ask);
            }
        }
        asks.sort_by_key(|ask| self.inner.ranks[ask.place]);
        let unasked = vec![true; asks.len()];
        Board { asks, verdicts: Verdicts::default(), unasked, taken: Takings::new() }
    }

    /// Asks the store some of the questions, and notes what it says. What is held is not spent.
    async fn put(&self, board: &mut Board<'_>, places: &[usize], held: bool) {
        let asks: Vec<Ask<'_>> = places.iter().map(|place| board.asks[*place]).collect();
        let mut charges: Vec<Charge<'_>> = asks.iter().map(Ask::charge).collect();
        let Some(first) = charges.first().cloned() else { return };
        if held {
            charges.iter_mut().for_each(|charge| charge.alone = false);
            // A charge that never fits: the others are answered for what they cost, and not made.
            charges.push(Charge { cost: u64::MAX, alone: false, ..first });
        }
        let (mut answers, taken) = match held {
            // The one that never fits is no rule's.
            true => self.charge(&[&asks[..], &asks[..1]].concat(), &charges).await,
            false => self.charge(&asks, &charges).await,
        };
        board.taken.extend(taken);
        if held {
            answers.truncate(asks.len());
            charges.truncate(asks.len());
            // Nor are they made in this node's memory, should the store have failed.
            charges.iter_mut().for_each(|charge| charge.cost = 0);
        }
        let verdicts = self.inner.failing.settle(&*self.inner.store, &asks, &charges, &answers);
        let place_of = |index: usize| places[index];
        board.verdicts.extend(verdicts, place_of);
        for (index, answer) in answers.iter().enumerate() {
            board.unasked[place_of(index)] = matches!(answer, Answer::Unasked);
        }
    }

    /// Gives back what was charged before a rule denied without the store.
    fn give_back_charged(&self, board: &Board<'_>) {
        let refunds = board.verdicts.outcomes.iter().filter_map(|(place, outcome)| {
            let ask = &board.asks[*place];
            let slip = outcome.slip().filter(|_| ask.is_enforced())?;
            Some(ask.refund(Some(slip)))
        });
        let refunds: Vec<Refund> = refunds.collect();
        if !refunds.is_empty() {
            self.inner.store.refund_detached(refunds);
        }
    }

    /// Looks at what was not asked because another claim was denied, so that each can be told how it
    /// stands. A claim that is denied itself knows enough.
    async fn complete(&self, board: &mut Board<'_>) {
        // A denial that is remembered keeps the rest from being asked once more.
        for _ in 0..board.asks.len() {
            let open = |place, ask: &Ask<'_>| {
                board.unasked[place] && !board.denies(|claim| claim == ask.claim)
            };
            let looks = board.places(|place, ask| ask.cost == 0 && open(place, ask));
            let spends = board.places(|place, ask| ask.cost > 0 && open(place, ask));
            if looks.is_empty() && spends.is_empty() {
                return;
            }
            self.put(board, &looks, false).await;
            self.put(board, &spends, true).await;
        }
    }
}
