//! Closes a connection so that the last response arrives.
//!
//! Unread bytes reset a connection when it is closed, and a client that is still sending may then never see the
//! response. A proxy would treat the reset as an outage, and admit the request.

use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// Most bytes that are read and dropped after the last response.
const MAX_LINGER_BYTES: usize = 4 * 1024 * 1024;

/// Reads and drops what a client sends after its last response.
///
/// It ends when the client closes or has sent 4 MiB. The listener aborts a connection that takes longer than its
/// timeouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LingeringClose {
    read: usize,
}

impl LingeringClose {
    /// Polls a stream after its sending side was shut down.
    pub fn poll<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        while self.read < MAX_LINGER_BYTES {
            let mut scratch = [MaybeUninit::uninit(); 8 * 1024];
            let mut buffer = ReadBuf::uninit(&mut scratch);
            match ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => self.read += buffer.filled().len(),
                // The client has closed, or the connection is broken.
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(())
    }
}

/// Shuts the sending side of a stream down, then reads until the client has closed too. Cancel safe.
pub async fn lingering_close<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
    if stream.shutdown().await.is_ok() {
        let mut lingering = LingeringClose::default();
        poll_fn(|context| lingering.poll(stream, context)).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn reads_on_until_the_client_closes_or_has_sent_too_much() {
        let (mut client, mut server) = tokio::io::duplex(64 * 1024);
        let closing = tokio::spawn(async move {
            lingering_close(&mut server).await;
            server
        });
        let mut end = Vec::new();
        client.write_all(&[0; 100_000]).await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(client.read_to_end(&mut end).await.unwrap(), 0);
        closing.await.unwrap();

        let (mut client, mut server) = tokio::io::duplex(64 * 1024);
        let closing = tokio::spawn(async move { lingering_close(&mut server).await });
        let sent = client.write_all(&vec![0; 2 * MAX_LINGER_BYTES]).await;
        assert!(sent.is_err(), "the server stopped reading and closed");
        closing.await.unwrap();
    }
}
