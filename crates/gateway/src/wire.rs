//! The client's side of a connection: whatever moves on it is a sign of life, and it is closed with care.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::hangup::Hangup;
use bytes::{Buf, Bytes, BytesMut};
use tidegate_net::listener::{Activity, LingeringClose, Phase, Stream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// How much is read to find out what is spoken, in bytes.
const FIRST_READ: usize = 4 * 1024;

/// What every client of HTTP/2 says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection to a client.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Stream,
    /// What was read to find out what is spoken.
    ahead: Bytes,
    activity: Arc<Activity>,
    /// Whether the next byte begins a head: on HTTP/2 it may be a ping.
    http2: bool,
    /// Set once the sending side is shut down.
    closing: Option<LingeringClose>,
    hangup: Arc<Hangup>,
}

impl Wire {
    /// Finds out what is spoken: from the handshake, else from the first bytes.
    ///
    /// # Errors
    /// The connection broke.
    pub(super) async fn open(mut stream: Stream, activity: Arc<Activity>) -> io::Result<Self> {
        let mut ahead = BytesMut::new();
        let http2 = match &mut stream {
            Stream::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(b"h2"),
            Stream::Plain(stream) => {
                // Room for most heads, so that they are read at once.
                ahead.reserve(FIRST_READ);
                // No method of HTTP/1 begins like this.
                while ahead.len() < PREFACE.len() && PREFACE.starts_with(&ahead) {
                    if stream.read_buf(&mut ahead).await? == 0 {
                        break;
                    }
                }
                ahead.starts_with(PREFACE)
            }
        };
        if http2 {
            // Who has said that it speaks HTTP/2 may be silent.
            activity.set_phase(Phase::Idle);
        }
        let (ahead, closing, hangup) = (ahead.freeze(), None, Arc::default());
        Ok(Self { stream, ahead, activity, http2, closing, hangup })
    }

    pub(super) fn is_http2(&self) -> bool {
        self.http2
    }

    /// What tells whether the client is still there.
    pub(super) fn hangup(&self) -> Arc<Hangup> {
        Arc::clone(&self.hangup)
    }

    fn moved(&self) {
        match self.activity.phase() {
            Phase::Request => self.activity.set_phase(Phase::Request),
            Phase::Idle if !self.http2 => self.activity.set_phase(Phase::Head),
            Phase::Idle | Phase::Head | Phase::Waiting => {}
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let length = self.ahead.len().min(buffer.remaining());
            buffer.put_slice(&self.ahead[..length]);
            self.ahead.advance(length);
            if self.ahead.is_empty() {
                self.ahead = Bytes::new();
            }
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.moved();
        }
        read
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_ready() && self.activity.phase() == Phase::Request {
            self.activity.set_phase(Phase::Request);
        }
        written
    }

    /// hyper flushes each time that it looks at a connection.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.hangup.look(match &self.stream {
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
        if written.is_ready() && self.activity.phase() == Phase::Request {
            self.activity.set_phase(Phase::Request);
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
