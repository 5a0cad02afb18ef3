//! One direction of one connection.

use std::io;
use std::sync::atomic::Ordering;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use super::{ProxyFault, ProxyState};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Requests,
    Replies,
}

/// Carries bytes to `to`, as the fault of the moment has it.
pub(crate) struct Pipe<'a> {
    shared: &'a ProxyState,
    direction: Direction,
    to: OwnedWriteHalf,
    /// Bytes that are still forwarded, if this connection is to be cut.
    cut_after: Option<usize>,
}

/// Bytes, and when they are due at the other end.
type DelayedBytes = (Instant, Vec<u8>);

impl<'a> Pipe<'a> {
    pub(crate) fn new(shared: &'a ProxyState, direction: Direction, to: OwnedWriteHalf) -> Self {
        Self { shared, direction, to, cut_after: None }
    }

    /// Runs until `from` has no more bytes, which the other end then learns. An error ends the whole connection.
    pub(crate) async fn run(mut self, from: OwnedReadHalf) -> io::Result<()> {
        // Reading goes on while a delay runs: latency must not cost throughput.
        let (parcels, arriving) = unbounded_channel();
        tokio::try_join!(
            receive(self.shared, self.direction, from, parcels),
            self.deliver(arriving)
        )?;
        Ok(())
    }

    async fn deliver(&mut self, mut arriving: UnboundedReceiver<DelayedBytes>) -> io::Result<()> {
        let mut fault = self.shared.fault.subscribe();
        while let Some((due, bytes)) = arriving.recv().await {
            sleep_until(due).await;
            // The sender lives in `shared`, so there is always a next value to wait for.
            let _ = fault.wait_for(|fault| *fault != ProxyFault::Stall).await;
            self.write(&bytes).await?;
        }
        self.to.shutdown().await
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.direction == Direction::Replies && self.cut_after.is_none() {
            self.cut_after = self.shared.next_cut().take();
        }
        let passing = self.cut_after.map_or(bytes.len(), |left| left.min(bytes.len()));
        self.to.write_all(&bytes[..passing]).await?;
        match &mut self.cut_after {
            Some(left) if *left == passing => {
                self.shared.cut.fetch_add(1, Ordering::SeqCst);
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            Some(left) => {
                *left -= passing;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

async fn receive(
    shared: &ProxyState,
    direction: Direction,
    mut from: OwnedReadHalf,
    parcels: UnboundedSender<DelayedBytes>,
) -> io::Result<()> {
    loop {
        let mut bytes = vec![0; 16 * 1024];
        let length = from.read(&mut bytes).await?;
        if length == 0 {
            return Ok(());
        }
        bytes.truncate(length);
        let delay = shared.fault.borrow().delay(direction);
        let _ = parcels.send((Instant::now() + delay, bytes));
    }
}
