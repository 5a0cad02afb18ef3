//! Script calls: each is made once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::{ErrorKind, FromRedisValue, RedisError, ServerErrorKind};
use tokio::time::Instant;

use super::super::redirect::Redirect;
use super::super::script::Script;
use super::super::state;
use super::{Failure, Link, MOVING, Node};
use crate::store::{Refund, StoreError};

impl Node {
    /// Takes charges back, all of them kept in one place. How many gave anything back.
    pub(in super::super) async fn refund(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        self.amend(refunds, false).await
    }

    /// Renews slots in flight, all of them kept in one place. Returns how many are held.
    pub(in super::super) async fn renew(&self, slots: &[Refund]) -> Result<usize, StoreError> {
        self.amend(slots, true).await
    }

    async fn amend(&self, refunds: &[Refund], renews: bool) -> Result<usize, StoreError> {
        let keys: Vec<String> =
            refunds.iter().map(|refund| self.shared.spell(refund.key)).collect();
        let arguments: Vec<Vec<u8>> =
            refunds.iter().map(|refund| refund_argument(refund, renews)).collect();
        let script = &self.shared.scripts.refund;
        let reply: Vec<u8> = self.call_anywhere(script, &keys, &arguments).await?;
        Ok(reply.iter().filter(|given| **given == 1).count())
    }

    /// Releases slots that nobody waits for any more, all of them kept in one place.
    pub(in super::super) fn release(self: Arc<Self>, slots: Vec<Refund>) {
        let shared = Arc::clone(&self.shared);
        shared.spawn(async move {
            // Sent once; what is not released is lost after its hold.
            let _ = self.refund(&slots).await;
        });
    }

    /// Calls a script that is not part of the traffic, wherever a cluster keeps its key.
    #[allow(
        clippy::disallowed_methods,
        reason = "keys on their way are nothing to wait for otherwise"
    )]
    pub(in super::super) async fn call_anywhere<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[Vec<u8>],
    ) -> Result<T, StoreError> {
        const HOPS: usize = 16;
        let (mut node, mut asking) = (self.this.upgrade(), false);
        for _ in 0..HOPS {
            let Some(at) = node else { break };
            let link = at.link.load_full().ok_or_else(|| at.unavailable())?;
            let redirect = match at.call(&link, script, keys, arguments, asking).await {
                Ok(reply) => return Ok(reply),
                Err(Failure::Store(error)) => return Err(error),
                Err(Failure::Redirect(redirect)) => redirect,
            };
            let cluster = self.cluster.upgrade();
            node = cluster.map(|cluster| match &redirect {
                Redirect::Moved { slot, to } => cluster.moved(*slot, to),
                Redirect::Ask { to, .. } => cluster.node_at(to),
                Redirect::TryAgain | Redirect::ClusterDown => at,
            });
            asking = matches!(redirect, Redirect::Ask { .. });
            if !asking {
                tokio::time::sleep(MOVING).await;
            }
        }
        Err(self.unavailable())
    }

    /// Calls a script once, by its hash, or with its text when the server does not know it: that is
    /// the one failure after which nothing can have been done.
    pub(super) async fn call<T: FromRedisValue>(
        &self,
        link: &Arc<Link>,
        script: &Script,
        keys: &[String],
        arguments: &[Vec<u8>],
        asking: bool,
    ) -> Result<T, Failure> {
        let sent = Instant::now();
        let mut reply = eval(link, "EVALSHA", &script.hash, keys, arguments, asking).await;
        if let Err(error) = &reply
            && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
        {
            reply = eval(link, "EVAL", &script.source, keys, arguments, asking).await;
        }
        self.tally.note_call(sent.elapsed());
        match reply {
            Ok(reply) => {
                self.failures.store(0, Ordering::Relaxed);
                Ok(reply)
            }
            Err(error) => Err(self.blame(link, &error)),
        }
    }
}

pub(super) async fn eval<T: FromRedisValue>(
    link: &Link,
    command: &str,
    script: &str,
    keys: &[String],
    arguments: &[Vec<u8>],
    asking: bool,
) -> Result<T, RedisError> {
    let mut eval = redis::cmd(command);
    eval.arg(script).arg(keys.len()).arg(keys).arg(arguments);
    let mut connection = link.connection.clone();
    if !asking {
        return eval.query_async(&mut connection).await;
    }
    let mut both = redis::pipe();
    both.cmd("ASKING").ignore().add_command(eval);
    let (reply,) = both.query_async(&mut connection).await?;
    Ok(reply)
}

/// One argument of the refund script. `renews` is for slots in flight.
pub(super) fn refund_argument(refund: &Refund, renews: bool) -> Vec<u8> {
    let tag = state::Tag::of(&refund.limit);
    let shared = tag.shared();
    let mut argument = vec![tag.algorithm(), u8::try_from(shared.len()).unwrap_or(0)];
    argument.extend_from_slice(shared);
    state::put_terms(&mut argument, &refund.limit.terms(refund.cost));
    if let Some(slip) = &refund.slip {
        state::put_slip(&mut argument, slip);
        if refund.limit.is_held() {
            argument.push(u8::from(renews));
            argument.extend_from_slice(tag.bytes());
        }
    }
    argument
}
