//! One client: read what is there, answer all of it in order, write once.
//!
//! A client is not read from while replies to it wait to be written, so one that does not read takes up
//! no more than a little memory, and the door cuts it off in time.

use std::io;

use bytes::{Buf as _, BytesMut};
use tidegate_core::CallError;
use tidegate_net::listener::{Activity, Phase, Stream, lingering_close};
use tidegate_service::call::Protocol;
use tidegate_service::service::Service;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::resp::check;
use crate::resp::frame::{Arguments, Frame};
use crate::resp::manual::{Entry, Verb};
use crate::resp::pipeline::{Answer, Pipeline, Turn};
use crate::resp::reply::{Refusal, Replies};
use crate::resp::session::Session;
use crate::resp::standing::Standing;
use crate::resp::throttle::Throttle;

/// Fewest and most bytes that are read at once.
const ROOM: (usize, usize) = (4 * 1024, 64 * 1024);
/// Replies are written once they are this long, though more could be answered.
const MAX_REPLIES: usize = 64 * 1024;
/// A connection and what is known of it.
pub(super) struct Connection<'d> {
    stream: Stream,
    service: &'d Service,
    activity: &'d Activity,
    session: Session,
    input: BytesMut,
    /// How many bytes to read at once; grows with what comes.
    room: usize,
    replies: Replies,
}

/// How things go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    /// There may be more commands.
    More,
    /// Every command that is there was answered.
    Dry,
    /// This was the last one.
    Over,
}

impl<'d> Connection<'d> {
    pub(super) fn new(
        stream: Stream,
        service: &'d Service,
        session: Session,
        activity: &'d Activity,
    ) -> Self {
        Self {
            stream,
            service,
            activity,
            session,
            input: BytesMut::new(),
            room: ROOM.0,
            replies: Replies::default(),
        }
    }

    /// Serves the client until it goes, breaks the protocol, or the door closes.
    ///
    /// # Errors
    /// The network's.
    pub(super) async fn run(mut self) -> io::Result<()> {
        // Pools open connections long before they use them.
        self.activity.set_phase(Phase::Idle);
        loop {
            let flow = self.answer().await;
            self.write().await?;
            match flow {
                Flow::More => {}
                Flow::Over => {
                    self.activity.set_phase(Phase::Head);
                    tokio::select! {
                        () = lingering_close(&mut self.stream) => {}
                        () = self.activity.closed() => {}
                    }
                    return Ok(());
                }
                Flow::Dry => {
                    let leaving = self.activity.is_closing() && self.input.is_empty();
                    // A client that sends no more has been answered whatever it had asked.
                    if leaving || self.read().await? == 0 {
                        return self.stream.shutdown().await;
                    }
                }
            }
        }
    }

    /// Answers the commands that are there, until the replies are to be written.
    async fn answer(&mut self) -> Flow {
        let Self { service, activity, session, input, replies, .. } = self;
        let mut pipeline = Pipeline::new(service.is_synchronous());
        let mut at = 0;
        let flow = loop {
            if replies.len() >= MAX_REPLIES {
                break Flow::More;
            }
            match Frame::read(&input[at..]) {
                Ok(None) => break Flow::Dry,
                Ok(Some(Frame { arguments, length })) => {
                    if at == 0 {
                        activity.set_phase(Phase::Request);
                    }
                    at += length;
                    let flow = step(arguments, service, session, &mut pipeline, replies).await;
                    if flow == Flow::Over {
                        break flow;
                    }
                }
                Err(malformed) => {
                    pipeline.settle(replies).await;
                    replies.error(&Refusal::error(format_args!(
                        "ConnectionHandler error: {malformed}"
                    )));
                    break Flow::Over;
                }
            }
        };
        pipeline.settle(replies).await;
        drop(pipeline);
        input.advance(at);
        flow
    }

    /// Writes all replies. Until the client has taken them, nothing more is read from it.
    async fn write(&mut self) -> io::Result<()> {
        if self.replies.is_empty() {
            return Ok(());
        }
        self.activity.set_phase(Phase::Request);
        self.stream.write_all(self.replies.as_bytes()).await?;
        self.stream.flush().await?;
        self.replies.clear(MAX_REPLIES);
        Ok(())
    }

    /// Reads what is there, or what comes next: how many bytes; 0 at the end, and when the door closes
    /// while nothing is under way.
    async fn read(&mut self) -> io::Result<usize> {
        let phase = if self.input.is_empty() { Phase::Idle } else { Phase::Head };
        // A command that comes byte by byte has been under way since the first of them.
        if self.activity.phase() != phase {
            self.activity.set_phase(phase);
        }
        if self.input.is_empty() && self.input.capacity() > 2 * self.room {
            self.input = BytesMut::new();
        }
        self.input.reserve(self.room);
        let read = tokio::select! {
            biased;
            read = self.stream.read_buf(&mut self.input) => read?,
            () = self.activity.closed(), if self.input.is_empty() => 0,
        };
        if read >= self.room {
            self.room = (self.room * 2).min(ROOM.1);
        } else if read < self.room / 4 {
            self.room = (self.room / 2).max(ROOM.0);
        }
        Ok(read)
    }
}

/// Answers one command, or asks for what its answer needs.
async fn step<'b>(
    arguments: Arguments<'b>,
    service: &'b Service,
    session: &mut Session,
    pipeline: &mut Pipeline<'b>,
    replies: &mut Replies,
) -> Flow {
    match arguments.first() {
        None => return Flow::More,
        Some(name) if is_http(name) => {
            tracing::warn!("HTTP on the RESP door, a web page may have been made to send it");
            return Flow::Over;
        }
        Some(_) => {}
    }
    match taken(arguments, service, session, pipeline, replies).await {
        Ok(flow) => flow,
        Err(refusal) => {
            pipeline.settle(replies).await;
            replies.error(&refusal);
            Flow::More
        }
    }
}

async fn taken<'b>(
    mut arguments: Arguments<'b>,
    service: &'b Service,
    session: &mut Session,
    pipeline: &mut Pipeline<'b>,
    replies: &mut Replies,
) -> Result<Flow, Refusal> {
    let entry = Entry::of(&arguments)?;
    if !session.is_known() && !entry.is_for_strangers() {
        return Err(Refusal::coded("NOAUTH", "Authentication required."));
    }
    match entry.verb {
        Verb::Throttle => {
            let throttle = Throttle::read(&mut arguments, &mut session.limits)
                .map_err(|refusal| counted(service, refusal))?;
            if pipeline.is_at_once() {
                Answer::Throttle(throttle.decide(service).await).write(replies);
                return Ok(Flow::More);
            }
            let turn = if throttle.gives_back() { Turn::Alone } else { Turn::Next };
            let deciding = async { Answer::Throttle(throttle.decide(service).await) };
            pipeline.ask(deciding, turn, replies).await;
        }
        Verb::Check => {
            let call = check::read(arguments).map_err(|refusal| counted(service, refusal))?;
            if pipeline.is_at_once() {
                let standing = Standing::of(service.check(Protocol::Resp, call).await);
                Answer::Check(standing).write(replies);
                return Ok(Flow::More);
            }
            let deciding =
                async { Answer::Check(Standing::of(service.check(Protocol::Resp, call).await)) };
            pipeline.ask(deciding, Turn::Next, replies).await;
        }
        verb => {
            pipeline.settle(replies).await;
            session.answer(verb, &arguments, replies)?;
            if verb == Verb::Quit {
                return Ok(Flow::Over);
            }
        }
    }
    Ok(Flow::More)
}

/// A refusal that the service has heard of, as of every call that is not understood.
fn counted(service: &Service, refusal: Refusal) -> Refusal {
    let _ = service.count_rejected(
        Protocol::Resp,
        CallError::invalid("command", "other arguments", "its own"),
    );
    refusal
}

/// Whether this is the beginning of a line that a browser would send. Redis looks for the same two.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:")
}
