//! A request's way to an upstream server and its answer's way back, with second tries where they do no harm.

use std::sync::Arc;

use futures_util::future::Either;
use hyper::body::{Body, Incoming};
use hyper::header::{HeaderValue, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{Request, Response};
use smallvec::SmallVec;
use tidegate_limiter::Clock;

use super::body::{Up, Upload};
use super::config::Timeouts;
use super::head;
use super::pool::{ConnectError, Kept, Line, Pool, Stream};
use super::upstream::{Busy, Server, Upstream};

/// How often a request that was never written is tried again, each time on another connection.
const TRIES: usize = 8;

const CHUNKED: HeaderValue = HeaderValue::from_static("chunked");

/// Sends requests to upstreams.
#[derive(Debug)]
pub(super) struct Forward {
    pub(super) pool: Arc<Pool>,
    pub(super) clock: Clock,
    pub(super) timeouts: Timeouts,
}

/// An answer, and what serves it until its body is over.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) response: Response<Incoming>,
    /// Its connection, if that can be used again.
    pub(super) kept: Option<Kept>,
    pub(super) under_way: UnderWay,
}

/// What counts while an answer is under way.
#[derive(Debug)]
pub(super) struct UnderWay {
    _stream: Option<Stream>,
    _busy: Busy,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// No server could be reached.
    Unreachable,
    /// None could be reached in time.
    ConnectTimeout,
    /// The server broke off before it answered.
    BrokenOff,
    /// The server did not answer in time.
    Silent,
    /// The client's body broke off or is framed wrongly.
    BadBody,
    /// The client stopped sending its body.
    SlowBody,
}

/// What became of one try.
enum Tried {
    Answered(Response<Incoming>),
    /// It was never written; here it is.
    Unsent(Request<Up>),
    /// The connection broke before an answer came.
    Lost,
    Failed(Failure),
}

impl Forward {
    /// Sends a request to a server of the upstream.
    ///
    /// # Errors
    /// No server answers; a request that may have reached one is not sent again, unless it does no harm.
    pub(super) async fn send(
        &self,
        upstream: &Upstream,
        mut request: Request<Up>,
    ) -> Result<Answered, Failure> {
        let upload = request.body().upload();
        let mut tried: SmallVec<[usize; 4]> = SmallVec::new();
        let mut again = true;
        let mut failure = Failure::Unreachable;
        for _ in 0..TRIES {
            let Some(server) = upstream.choose(|| self.clock.now(), &tried) else { break };
            let mut line = match self.pool.line(server, &self.clock, self.timeouts.connect).await {
                Ok(line) => line,
                Err(error) => {
                    failure = self.unreachable(server, &error);
                    tried.push(server.id);
                    continue;
                }
            };
            let busy = server.busy();
            let (mut head, body) = request.into_parts();
            let used = matches!(line, Line::One { used: true, .. } | Line::Many { .. });
            // A connection that had been idle may be closed while the request is on its way.
            let repeats = again && used && upload.is_none() && head::is_idempotent(&head.method);
            let spare = repeats.then(|| copy(&head));
            prepare(&mut head, &body, &line, server);
            let prepared = Request::from_parts(head, body);
            match self.try_on(&mut line, prepared, upload.as_deref()).await {
                Tried::Answered(response) => {
                    server.answered();
                    let (kept, stream) = match line {
                        Line::One { line, .. } => (Some(self.pool.keep(server, line)), None),
                        Line::Many { stream, .. } => (None, Some(stream)),
                    };
                    let under_way = UnderWay { _stream: stream, _busy: busy };
                    return Ok(Answered { response, kept, under_way });
                }
                Tried::Unsent(back) => {
                    failure = Failure::BrokenOff;
                    request = back;
                }
                Tried::Lost if upload.as_ref().is_some_and(|upload| upload.has_failed()) => {
                    return Err(Failure::BadBody);
                }
                Tried::Lost => match spare {
                    Some(head) => {
                        again = false;
                        failure = Failure::BrokenOff;
                        request = Request::from_parts(*head, Up::empty());
                    }
                    None => {
                        server.failed(self.clock.now(), "it broke off");
                        return Err(Failure::BrokenOff);
                    }
                },
                Tried::Failed(failure) => {
                    if failure == Failure::Silent {
                        server.failed(self.clock.now(), "it did not answer in time");
                    }
                    return Err(failure);
                }
            }
        }
        Err(failure)
    }

    /// Whether a server gives a good answer to a request of our own.
    pub(super) async fn probe(&self, server: &Server, request: Request<Up>) -> bool {
        let Ok(mut line) = self.pool.line(server, &self.clock, self.timeouts.connect).await else {
            return false;
        };
        let (mut head, body) = request.into_parts();
        prepare(&mut head, &body, &line, server);
        match self.try_on(&mut line, Request::from_parts(head, body), None).await {
            Tried::Answered(response) => {
                response.status().is_success() || response.status().is_redirection()
            }
            Tried::Unsent(_) | Tried::Lost | Tried::Failed(_) => false,
        }
    }

    fn unreachable(&self, server: &Server, error: &ConnectError) -> Failure {
        let (reason, failure) = match error {
            ConnectError::Timeout => ("it was not reached in time", Failure::ConnectTimeout),
            ConnectError::Failed(error) => (error.as_str(), Failure::Unreachable),
        };
        server.failed(self.clock.now(), reason);
        failure
    }

    /// Sends a request, and waits for an answer as long as the client's body makes progress, and then as
    /// long as a server may take.
    async fn try_on(
        &self,
        line: &mut Line,
        request: Request<Up>,
        upload: Option<&Upload>,
    ) -> Tried {
        let mut sending = std::pin::pin!(match line {
            Line::One { line, .. } => Either::Left(line.try_send_request(request)),
            Line::Many { line, .. } => Either::Right(line.try_send_request(request)),
        });
        let mut seen = 0;
        loop {
            let late = self.clock.sleep(self.timeouts.response);
            let sent = tokio::select! {
                biased;
                sent = &mut sending => sent,
                () = late => {
                    let frames = upload.map_or(0, Upload::frames);
                    if frames != seen {
                        seen = frames;
                        continue;
                    }
                    let slow = upload.is_some_and(|upload| !upload.has_ended());
                    return Tried::Failed(if slow { Failure::SlowBody } else { Failure::Silent });
                }
            };
            return match sent {
                Ok(response) => Tried::Answered(response),
                Err(mut error) => match error.take_message() {
                    Some(request) => Tried::Unsent(request),
                    None => {
                        tracing::debug!(error = %error.error(), "upstream broke off");
                        Tried::Lost
                    }
                },
            };
        }
    }
}

/// Makes a head one for the version of HTTP that is spoken on a connection.
fn prepare(head: &mut Parts, body: &Up, line: &Line, server: &Server) {
    match line {
        Line::Many { .. } => head::for_http2(head, server.scheme(), &server.authority),
        Line::One { .. } => {
            head::for_http1(head, &server.authority);
            if body.size_hint().exact().is_none() {
                // Unless it is told to, hyper sends no body of a GET whose length it does not know.
                head.headers.insert(TRANSFER_ENCODING, CHUNKED);
            }
        }
    }
}

/// The same head once more.
fn copy(head: &Parts) -> Box<Parts> {
    let mut copied = Box::new(Request::new(()).into_parts().0);
    copied.method.clone_from(&head.method);
    copied.uri.clone_from(&head.uri);
    copied.headers.clone_from(&head.headers);
    copied.version = head.version;
    copied
}
