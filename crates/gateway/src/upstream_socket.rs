//! Sockets to upstream servers, of which a gateway thread may open a limited number.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tidegate_net::listener::ConnectionCounts;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The number of sockets of one pool, and its maximum.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamSockets {
    open: Arc<AtomicUsize>,
    max: usize,
    counts: Arc<ConnectionCounts>,
}

/// Permits one socket until it is dropped.
#[derive(Debug)]
pub(crate) struct SocketPermit(UpstreamSockets);

impl UpstreamSockets {
    /// Allows at most `max` sockets, at least one.
    pub(crate) fn new(max: usize, counts: Arc<ConnectionCounts>) -> Self {
        Self { open: Arc::default(), max: max.max(1), counts }
    }

    /// Allows any number, for pools that open only one.
    pub(crate) fn unlimited() -> Self {
        Self::new(usize::MAX, Arc::default())
    }

    /// Returns the counters of the gateway.
    pub(crate) fn counts(&self) -> &Arc<ConnectionCounts> {
        &self.counts
    }

    /// Permits one more socket; `None` at the maximum.
    pub(crate) fn permit(&self) -> Option<SocketPermit> {
        // Only the tasks of one thread open sockets, so that the number does not grow in between.
        (self.open.load(Ordering::Relaxed) < self.max).then(|| self.extra_permit())
    }

    /// Permits one more socket in place of one that closes now.
    pub(crate) fn extra_permit(&self) -> SocketPermit {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.counts.open_upstream();
        SocketPermit(self.clone())
    }
}

impl Drop for SocketPermit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        self.0.counts.close_upstream();
    }
}

/// A socket with its permit.
#[derive(Debug)]
pub(crate) struct UpstreamSocket {
    stream: TcpStream,
    _permit: SocketPermit,
}

impl UpstreamSocket {
    pub(crate) fn new(stream: TcpStream, permit: SocketPermit) -> Self {
        Self { stream, _permit: permit }
    }

    /// Waits until bytes or the end of the stream have arrived.
    #[cfg(test)]
    pub(crate) async fn readable(&self) {
        self.stream.readable().await.expect("the runtime is running");
    }

    /// Returns whether the socket is open and the server has sent nothing. Does not block.
    pub(crate) fn is_silent(&self) -> bool {
        let read = self.stream.try_read(&mut [0; 1]);
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl AsyncRead for UpstreamSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for UpstreamSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_permitted_up_to_the_maximum_and_again_after_one_closes() {
        let sockets = UpstreamSockets::new(2, Arc::default());
        let first = sockets.permit().unwrap();
        let _second = sockets.permit().unwrap();
        assert!(sockets.permit().is_none());
        assert_eq!(sockets.counts.upstream_open(), 2);
        drop(first);
        assert!(sockets.permit().is_some());
        assert_eq!(sockets.counts.upstream_open(), 1);
    }
}
