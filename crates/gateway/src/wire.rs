//! The client's side of a connection: whatever moves on it is a sign of life, and it is closed with care.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::hangup::Hangup;
use bytes::{Buf, Bytes, BytesMut};
use tidegate_net::listener::{Activity, Phase, Stream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Most that is read of what a client still sends after the last answer, in bytes.
const MAX_SEEN_OFF: usize = 4 * 1024 * 1024;

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
    closing: Closing,
    hangup: Arc<Hangup>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    No,
    /// We have said all; what the client still sends is read and thrown away.
    SeeingOff(usize),
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
        let (ahead, closing, hangup) = (ahead.freeze(), Closing::No, Arc::default());
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

    /// What is left unread when a connection is closed resets it, and a client that is still sending may
    /// never see the answer. The door ends it, should it take too long.
    fn poll_see_off(&mut self, context: &mut Context<'_>, mut seen: usize) -> Poll<io::Result<()>> {
        while seen < MAX_SEEN_OFF {
            let mut scratch = [MaybeUninit::uninit(); 8 * 1024];
            let mut buffer = ReadBuf::uninit(&mut scratch);
            let read = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
            self.closing = Closing::SeeingOff(seen);
            match ready!(read) {
                Ok(()) if !buffer.filled().is_empty() => seen += buffer.filled().len(),
                // Gone, one way or another.
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(Ok(()))
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
        let seen = match self.closing {
            Closing::SeeingOff(seen) => seen,
            Closing::No => {
                ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
                if self.http2 {
                    return Poll::Ready(Ok(()));
                }
                if self.activity.phase() != Phase::Request {
                    self.activity.set_phase(Phase::Head);
                }
                0
            }
        };
        self.poll_see_off(context, seen)
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
