//! The stream of a client connection: version detection, activity, disconnects and close.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use crate::direct_conn::poll_received;
use bytes::{Buf, Bytes, BytesMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate_net::listener::{Activity, LingeringClose, Phase, Stream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Size of the first read in bytes: enough for most request heads.
const FIRST_READ_BYTES: usize = 4 * 1024;

/// The first bytes of every HTTP/2 client (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Detects that a client has disconnected while its body is not being read.
///
/// Reading a socket reports its end only after all bytes before it were read. `poll` with `RDHUP` reports the end at
/// once. Only the connection task owns the socket: a request enables the watch, and the task checks the socket the
/// next time that hyper polls the connection.
#[derive(Debug, Default)]
pub(crate) struct DisconnectWatch {
    enabled: AtomicBool,
    disconnected: AtomicBool,
}

impl DisconnectWatch {
    /// Returns whether the client had disconnected at the last check, and enables the watch. The first call therefore
    /// returns `false`.
    pub(crate) fn is_disconnected(&self) -> bool {
        self.enabled.store(true, Ordering::Relaxed);
        self.disconnected.load(Ordering::Relaxed)
    }

    /// Stops the checks.
    pub(crate) fn disable(&self) {
        self.enabled.store(false, Ordering::Relaxed);
    }

    /// Checks the socket if the watch is enabled. Does not block.
    fn check(&self, stream: &TcpStream) {
        if !self.enabled.load(Ordering::Relaxed) {
            return;
        }
        let mut sockets = [PollFd::new(stream, PollFlags::RDHUP)];
        if poll(&mut sockets, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok() {
            let end_events = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
            let disconnected = sockets[0].revents().intersects(end_events);
            self.disconnected.store(disconnected, Ordering::Relaxed);
        }
    }
}

/// A client connection. Reads and writes restart the timeout of its phase; shutdown is a lingering close.
#[derive(Debug)]
pub(crate) struct ClientStream {
    stream: Stream,
    /// Bytes that were read to detect the HTTP version, or to find a common request, and are read again.
    peeked: Bytes,
    activity: Arc<Activity>,
    http2: bool,
    /// Set once the sending side is shut down.
    closing: Option<LingeringClose>,
    disconnect: Arc<DisconnectWatch>,
}

impl ClientStream {
    /// Detects the HTTP version: by ALPN with TLS, otherwise by the first bytes.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) async fn open(mut stream: Stream, activity: Arc<Activity>) -> io::Result<Self> {
        let mut peeked = BytesMut::new();
        let http2 = match &mut stream {
            Stream::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(b"h2"),
            Stream::Plain(stream) => {
                peeked.reserve(FIRST_READ_BYTES);
                // No HTTP/1 method starts with "PRI": one differing byte means HTTP/1.
                while peeked.len() < HTTP2_PREFACE.len() && HTTP2_PREFACE.starts_with(&peeked) {
                    if stream.read_buf(&mut peeked).await? == 0 {
                        break;
                    }
                }
                peeked.starts_with(HTTP2_PREFACE)
            }
        };
        if http2 {
            // After the preface an HTTP/2 client may stay idle.
            activity.set_phase(Phase::Idle);
        }
        let (peeked, closing, disconnect) = (peeked.freeze(), None, Arc::default());
        Ok(Self { stream, peeked, activity, http2, closing, disconnect })
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.http2
    }

    /// Returns the disconnect watch of this connection.
    pub(crate) fn disconnect_watch(&self) -> Arc<DisconnectWatch> {
        Arc::clone(&self.disconnect)
    }

    /// Reads the bytes that have arrived; none at the end of the stream.
    pub(crate) fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        match self.peeked.is_empty() {
            true => poll_received(self, context),
            false => Poll::Ready(Ok(std::mem::take(&mut self.peeked))),
        }
    }

    /// Returns received bytes to the stream. The next read gets them.
    pub(crate) fn unread(&mut self, received: Bytes) {
        debug_assert!(self.peeked.is_empty(), "bytes are out of order");
        self.peeked = received;
    }

    fn on_read(&self) {
        match self.activity.phase() {
            Phase::Request => self.activity.set_phase(Phase::Request),
            // On HTTP/2 the byte may belong to a ping, so only HTTP/1 begins a head.
            Phase::Idle if !self.http2 => self.activity.set_phase(Phase::Head),
            Phase::Idle | Phase::Head | Phase::Waiting => {}
        }
    }

    fn on_write(&self) {
        if self.activity.phase() == Phase::Request {
            self.activity.set_phase(Phase::Request);
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.peeked.is_empty() {
            let length = self.peeked.len().min(buffer.remaining());
            buffer.put_slice(&self.peeked[..length]);
            self.peeked.advance(length);
            if self.peeked.is_empty() {
                self.peeked = Bytes::new();
            }
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.on_read();
        }
        read
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_ready() {
            self.on_write();
        }
        written
    }

    /// Flushes, and checks for a disconnect: hyper flushes each time that it polls a connection.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.disconnect.check(match &self.stream {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => stream.get_ref().0,
        });
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closing.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
            if self.http2 {
                return Poll::Ready(Ok(()));
            }
            if self.activity.phase() != Phase::Request {
                self.activity.set_phase(Phase::Head);
            }
        }
        let Self { stream, closing, .. } = &mut *self;
        closing.get_or_insert_default().poll(stream, context).map(Ok)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        if written.is_ready() {
            self.on_write();
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
