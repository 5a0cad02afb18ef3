//! Connections to upstreams without hyper: one request at a time, in the task that waits for the response.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::{Method, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::pool::ConnectionPool;
use crate::response_reader::{BodyPart, BodyReader, ResponseHead};
use crate::upstream_socket::UpstreamSocket;

/// Most bytes of one read.
const READ_BYTES: usize = 16 * 1024;

/// Reads the bytes that have arrived; none at the end of the stream. Nothing is allocated while it waits.
pub(crate) fn poll_received<S: AsyncRead + Unpin>(
    stream: &mut S,
    context: &mut Context<'_>,
) -> Poll<io::Result<Bytes>> {
    let mut scratch = [MaybeUninit::uninit(); READ_BYTES];
    let mut buffer = ReadBuf::uninit(&mut scratch);
    ready!(Pin::new(stream).poll_read(context, &mut buffer))?;
    Poll::Ready(Ok(Bytes::copy_from_slice(buffer.filled())))
}

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct DirectConn {
    socket: UpstreamSocket,
    /// Bytes of the response that were read and not used.
    received: Bytes,
    body: BodyReader,
    /// Set if another request may follow the body.
    is_reusable: bool,
}

/// The result of one request on a connection.
#[derive(Debug)]
pub(crate) enum DirectOutcome {
    /// The head of the response. The connection has the body.
    Responded(Response<()>),
    /// Nothing of the request was written.
    NotSent,
    /// The connection failed before the response, or the response is invalid.
    Lost(io::Error),
}

impl DirectConn {
    pub(crate) fn new(socket: UpstreamSocket) -> Self {
        let (received, body) = (Bytes::new(), BodyReader::Length(0));
        Self { socket, received, body, is_reusable: true }
    }

    /// Returns whether an idle connection can carry a request: it is open, and the server has sent nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_reusable && self.received.is_empty() && self.socket.is_silent()
    }

    /// Sends an encoded request, and reads the head of the response.
    pub(crate) async fn exchange(&mut self, request: &[u8], method: &Method) -> DirectOutcome {
        let mut sent = 0;
        poll_fn(|context| self.poll_exchange(request, &mut sent, method, context)).await
    }

    /// Writes and reads: a server may respond before it has read the whole request.
    fn poll_exchange(
        &mut self,
        request: &[u8],
        sent: &mut usize,
        method: &Method,
        context: &mut Context<'_>,
    ) -> Poll<DirectOutcome> {
        while let Some(unsent) = request.get(*sent..).filter(|unsent| !unsent.is_empty()) {
            match Pin::new(&mut self.socket).poll_write(context, unsent) {
                Poll::Ready(Ok(written)) if written > 0 => *sent += written,
                Poll::Ready(_) if *sent == 0 => return Poll::Ready(DirectOutcome::NotSent),
                // The server may have responded before it closed.
                Poll::Ready(_) | Poll::Pending => break,
            }
        }
        loop {
            let received = match ready!(poll_received(&mut self.socket, context)) {
                Ok(received) if !received.is_empty() => received,
                Ok(_) => {
                    return Poll::Ready(DirectOutcome::Lost(io::ErrorKind::UnexpectedEof.into()));
                }
                Err(error) => return Poll::Ready(DirectOutcome::Lost(error)),
            };
            self.push_received(received);
            match ResponseHead::take(&mut self.received, method) {
                Ok(None) => {}
                Ok(Some(head)) => {
                    self.body = head.body;
                    self.is_reusable &= head.is_reusable && *sent == request.len();
                    return Poll::Ready(DirectOutcome::Responded(head.head));
                }
                Err(error) => {
                    let error = io::Error::new(io::ErrorKind::InvalidData, error);
                    return Poll::Ready(DirectOutcome::Lost(error));
                }
            }
        }
    }

    fn push_received(&mut self, received: Bytes) {
        self.received = match self.received.is_empty() {
            true => received,
            // A part of a head or of a line.
            false => [&*self.received, &*received].concat().into(),
        };
    }

    /// Reads the next data of the body; `None` at its end.
    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let invalid =
            |error| Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::InvalidData, error))));
        loop {
            match self.body.take(&mut self.received) {
                Ok(BodyPart::Data(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(BodyPart::End) => return Poll::Ready(None),
                Ok(BodyPart::Missing) => {}
                Err(error) => return invalid(error),
            }
            match ready!(poll_received(&mut self.socket, context)) {
                Ok(received) if !received.is_empty() => self.push_received(received),
                Ok(_) => match self.body.on_close() {
                    Ok(()) => return Poll::Ready(None),
                    Err(error) => return invalid(error),
                },
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}

/// The body of a response. Its connection returns to the pool as soon as the last byte was read.
#[derive(Debug)]
pub(crate) struct DirectBody {
    /// `None` after the end of the body.
    conn: Option<DirectConn>,
    pool: Arc<ConnectionPool>,
    server: usize,
}

impl DirectBody {
    /// Reads the body of a response from `conn`, which has read its head.
    pub(crate) fn new(conn: DirectConn, pool: Arc<ConnectionPool>, server: usize) -> Self {
        let mut body = Self { conn: Some(conn), pool, server };
        body.release_at_end();
        body
    }

    fn release_at_end(&mut self) {
        if let Some(conn) = self.conn.take_if(|conn| conn.body.is_end()) {
            self.pool.release_direct(self.server, conn);
        }
    }
}

impl Body for DirectBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Some(conn) = &mut self.conn else { return Poll::Ready(None) };
        let data = ready!(conn.poll_data(context));
        match &data {
            Some(Err(_)) => self.conn = None,
            Some(Ok(_)) | None => self.release_at_end(),
        }
        Poll::Ready(data.map(|data| data.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.conn.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.conn.as_ref().map_or(Some(0), |conn| conn.body.missing()) {
            Some(missing) => SizeHint::with_exact(missing),
            None => SizeHint::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::upstream_socket::UpstreamSockets;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    /// Returns a connection and the side of the server.
    async fn connect() -> (DirectConn, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let permit = UpstreamSockets::unlimited().extra_permit();
        let (server, _) = listener.accept().await.unwrap();
        server.set_nodelay(true).unwrap();
        (DirectConn::new(UpstreamSocket::new(client, permit)), server)
    }

    /// Sends a request, and responds with these pieces. Returns the outcome, the connection, its body and the server.
    async fn exchange(pieces: Vec<&'static [u8]>) -> (DirectOutcome, DirectConn, TcpStream) {
        let (mut conn, mut server) = connect().await;
        let serving = tokio::spawn(async move {
            let mut request = [0; REQUEST.len()];
            server.read_exact(&mut request).await.unwrap();
            assert_eq!(request, REQUEST);
            for piece in pieces {
                server.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            server
        });
        let outcome = conn.exchange(REQUEST, &Method::GET).await;
        (outcome, conn, serving.await.unwrap())
    }

    async fn read_body(conn: &mut DirectConn) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(data) = poll_fn(|context| conn.poll_data(context)).await {
            body.extend_from_slice(&data?);
        }
        Ok(body)
    }

    #[tokio::test]
    async fn response_in_single_bytes_is_read_and_the_connection_is_idle_again() {
        let response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
        let (outcome, mut conn, _server) = exchange(response.chunks(1).collect()).await;
        assert!(matches!(outcome, DirectOutcome::Responded(_)), "{outcome:?}");
        assert!(!conn.body.is_end());
        assert_eq!(read_body(&mut conn).await.unwrap(), b"ok");
        assert!(conn.is_idle());
    }

    #[tokio::test]
    async fn connection_with_extra_bytes_or_a_closed_one_is_not_idle() {
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n";
        let (_, mut conn, _server) = exchange(vec![response]).await;
        assert_eq!(read_body(&mut conn).await.unwrap(), b"ok");
        assert!(!conn.is_idle());

        let (_, mut conn, server) = exchange(vec![&response[..40]]).await;
        assert_eq!(read_body(&mut conn).await.unwrap(), b"ok");
        assert!(conn.is_idle());
        drop(server);
        conn.socket.readable().await;
        assert!(!conn.is_idle());
    }

    #[tokio::test]
    async fn early_or_truncated_response_does_not_return_the_connection() {
        let (mut conn, mut server) = connect().await;
        server.write_all(b"HTTP/1.1 413 x\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        // More than the buffers of both sockets: the server responds without reading it.
        let request = vec![b'x'; 16 * 1024 * 1024];
        let outcome = conn.exchange(&request, &Method::POST).await;
        assert!(matches!(outcome, DirectOutcome::Responded(_)), "{outcome:?}");
        assert!(!conn.is_idle());

        let (_, mut conn, server) =
            exchange(vec![b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"]).await;
        drop(server);
        assert!(read_body(&mut conn).await.is_err());
    }

    #[tokio::test]
    async fn closed_connection_without_a_response_is_lost() {
        for response in [&b""[..], b"HTTP/1.1 200", b"what?\r\n\r\n"] {
            let (mut conn, mut server) = connect().await;
            server.write_all(response).await.unwrap();
            server.shutdown().await.unwrap();
            let outcome = conn.exchange(REQUEST, &Method::GET).await;
            assert!(matches!(outcome, DirectOutcome::Lost(_)), "{response:?}: {outcome:?}");
        }
    }
}
