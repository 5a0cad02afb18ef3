//! HTTP/1 on a listener.
//!
//! hyper has a timeout of its own for request heads, but arms a timer for each request. Here a
//! connection records its phase, and the listener sweeps all of them.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use crate::listener::{
    Activity, ConnectionHandler, ObservedStream, Peer, Phase, Stream, lingering_close,
};

/// Longest request head in bytes. Proxies pass on the heads of their clients, NGINX up to 32 KiB of them.
const MAX_HEAD: usize = 48 * 1024;
/// Largest read buffer of one connection in bytes.
const MAX_BUFFER: usize = 64 * 1024;

/// Answers the requests of a listener.
pub trait HttpHandler: Send + Sync + 'static {
    fn handle(
        &self,
        request: hyper::Request<Incoming>,
        peer: &Peer,
    ) -> impl Future<Output = hyper::Response<Full<Bytes>>> + Send;
}

/// HTTP/1, each request answered by a handler.
#[derive(Debug)]
pub struct Http1<H>(pub H);

impl<H: HttpHandler> ConnectionHandler for Http1<H> {
    async fn serve(&self, stream: Stream, peer: Peer, activity: Arc<Activity>) {
        let io = ObservedStream::new(stream, |read| {
            if read > 0 && activity.phase() == Phase::Idle {
                activity.set_phase(Phase::Head);
            }
        });
        let service = service_fn(|request| {
            activity.set_phase(Phase::Request);
            let reply = self.0.handle(request, &peer);
            let activity = &activity;
            async move {
                let reply = reply.await;
                activity.set_phase(Phase::Idle);
                Ok::<_, Infallible>(reply)
            }
        });
        let mut http = http1::Builder::new();
        // A client that has closed its sending side still gets its response.
        http.max_header_size(MAX_HEAD).max_buf_size(MAX_BUFFER).half_close(true);
        let mut connection = http.serve_connection(TokioIo::new(io), service);
        let (mut waiting, mut closing) = (false, false);
        let ended = poll_fn(|context| {
            // The task polls nothing else, so its waker stays the same.
            let waits = std::mem::replace(&mut waiting, true);
            let must_close = if waits {
                activity.is_closing()
            } else {
                activity.poll_closed(context).is_ready()
            };
            if must_close && !closing {
                closing = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            Pin::new(&mut connection).poll(context)
        });
        if let Err(error) = ended.await {
            tracing::debug!(%error, "connection failed");
            activity.set_phase(Phase::Head);
            lingering_close(&mut connection.into_parts().io.into_inner().into_inner()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use http_body_util::{BodyExt, Collected};
    use tidegate_core::Span;
    use tidegate_limiter::ManualClock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::watch;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::listener::{ConnectionTimeouts, Listener, pass};

    const TIMEOUTS: ConnectionTimeouts = ConnectionTimeouts {
        connections: 8,
        head: Span::from_secs(10),
        request: Span::from_secs(30),
        idle: Span::from_secs(90),
        drain: Span::from_secs(25),
        idle_grace: None,
    };

    /// Sends the body back.
    struct Echo;

    impl HttpHandler for Echo {
        async fn handle(
            &self,
            request: hyper::Request<Incoming>,
            _: &Peer,
        ) -> hyper::Response<Full<Bytes>> {
            let body = request.into_body().collect().await.map(Collected::to_bytes);
            hyper::Response::new(Full::new(body.unwrap_or_default()))
        }
    }

    struct Door {
        address: std::net::SocketAddr,
        time: ManualClock,
        close: watch::Sender<bool>,
        serving: JoinHandle<usize>,
    }

    impl Door {
        async fn open(timeouts: ConnectionTimeouts) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let time = ManualClock::default();
            let (close, closing) = watch::channel(false);
            let clock = time.clock();
            let connections = Arc::default();
            let shared = false;
            let doorway =
                Listener { listener, tls: None, connections, timeouts, clock, closing, shared };
            let serving = tokio::spawn(doorway.serve(Arc::new(Http1(Echo))));
            Self { address, time, close, serving }
        }

        async fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).await.unwrap()
        }
    }

    const REQUEST: &[u8] = b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\n\r\nhello";

    async fn answered(stream: &mut TcpStream) {
        stream.write_all(REQUEST).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nhello") {
            assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "closed");
        }
    }

    async fn closed(mut stream: TcpStream) {
        let mut rest = Vec::new();
        // A reset is an end too.
        let _ = stream.read_to_end(&mut rest).await;
        assert_eq!(rest, b"");
    }

    #[tokio::test]
    async fn a_slow_head_is_cut_off_without_hurting_others() {
        let door = Door::open(TIMEOUTS).await;
        let silent = door.connect().await;
        let mut slow = door.connect().await;
        slow.write_all(b"POST / HTTP/1.1\r\nhost").await.unwrap();
        // Accepted last, so once this one is answered all of them are being watched.
        let mut good = door.connect().await;
        answered(&mut good).await;
        pass(&door.time, TIMEOUTS.head).await;
        closed(silent).await;
        closed(slow).await;
        answered(&mut good).await;
        answered(&mut door.connect().await).await;
    }

    #[tokio::test]
    async fn a_head_that_starts_on_an_idle_connection_is_due_as_soon() {
        let door = Door::open(TIMEOUTS).await;
        let mut slow = door.connect().await;
        answered(&mut slow).await;
        slow.write_all(b"POST / HT").await.unwrap();
        // Whatever was sent before these two were answered has been read.
        let mut good = door.connect().await;
        answered(&mut good).await;
        answered(&mut good).await;
        pass(&door.time, TIMEOUTS.head).await;
        closed(slow).await;
    }

    #[tokio::test]
    async fn whoever_sends_too_long_a_head_is_told_so_and_not_reset() {
        let door = Door::open(TIMEOUTS).await;
        let mut sender = door.connect().await;
        let part = vec![b'x'; 200 * 1024];
        sender.write_all(b"GET / HTTP/1.1\r\nx: ").await.unwrap();
        sender.write_all(&part).await.unwrap();
        let mut answer = String::new();
        while !answer.ends_with("\r\n\r\n") {
            let mut byte = [0];
            sender.read_exact(&mut byte).await.unwrap();
            answer.push(char::from(byte[0]));
        }
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        // It is answered by now, and may go on as if it had not noticed.
        for _ in 0..10 {
            sender.write_all(&part).await.unwrap();
        }
        sender.shutdown().await.unwrap();
        assert_eq!(sender.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_body_that_never_comes_is_cut_off() {
        let door = Door::open(TIMEOUTS).await;
        let mut slow = door.connect().await;
        let head =
            b"POST / HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
        slow.write_all(head).await.unwrap();
        // The handler asks for the body once it runs.
        let mut asked = [0; 25];
        slow.read_exact(&mut asked).await.unwrap();
        assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
        pass(&door.time, TIMEOUTS.request).await;
        closed(slow).await;
    }

    #[tokio::test]
    async fn an_idle_connection_is_kept_for_a_while() {
        let door = Door::open(TIMEOUTS).await;
        let mut idle = door.connect().await;
        answered(&mut idle).await;
        pass(&door.time, TIMEOUTS.request).await;
        answered(&mut idle).await;
        pass(&door.time, TIMEOUTS.idle).await;
        closed(idle).await;
    }

    #[tokio::test]
    async fn more_connections_than_places_wait_for_one() {
        let door = Door::open(ConnectionTimeouts { connections: 1, ..TIMEOUTS }).await;
        let mut first = door.connect().await;
        answered(&mut first).await;
        let mut second = door.connect().await;
        second.write_all(REQUEST).await.unwrap();
        answered(&mut first).await;
        let mut byte = [0];
        let nothing = second.try_read(&mut byte).map_err(|error| error.kind());
        assert_eq!(nothing, Err(io::ErrorKind::WouldBlock));
        drop(first);
        second.read_exact(&mut byte).await.unwrap();
    }

    #[tokio::test]
    async fn closing_ends_idle_connections_and_cuts_off_what_takes_too_long() {
        let door = Door::open(ConnectionTimeouts { request: Span::HOUR, ..TIMEOUTS }).await;
        let mut idle = door.connect().await;
        answered(&mut idle).await;
        let mut stuck = door.connect().await;
        let head =
            b"POST / HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
        stuck.write_all(head).await.unwrap();
        stuck.read_exact(&mut [0; 25]).await.unwrap();
        door.close.send(true).unwrap();
        closed(idle).await;
        door.time.advance(TIMEOUTS.drain);
        assert_eq!(door.serving.await.unwrap(), 1);
    }
}
