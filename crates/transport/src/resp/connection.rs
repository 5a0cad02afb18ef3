//! The loop of one connection: read, run all complete commands in order, write the replies at once.
//!
//! Nothing is read while replies wait to be written. A client that does not read its replies therefore
//! uses little memory, and the request timeout closes its connection.

use std::io;
use std::net::SocketAddr;

use bytes::{Buf as _, BytesMut};
use tidegate_core::CallError;
use tidegate_net::auth_failures::{AfterFailure, AuthFailures};
use tidegate_net::listener::{Activity, Phase, Stream, lingering_close};
use tidegate_service::call::Protocol;
use tidegate_service::service::Service;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::resp::check;
use crate::resp::commands::{CommandKind, CommandSpec};
use crate::resp::frame::{Arguments, Frame};
use crate::resp::leading_checks::run_leading_checks;
use crate::resp::pipeline::{CommandOrder, CommandReply, Pipeline};
use crate::resp::reply::{ReplyBuffer, RespError};
use crate::resp::session::RespSession;
use crate::resp::throttle::ThrottleCommand;
use crate::resp::throttle_reply::ThrottleReply;
use crate::resp::transaction::QueuedCommands;

/// Smallest size of one read, in bytes.
const MIN_READ_BYTES: usize = 4 * 1024;
/// Largest size of one read, in bytes.
const MAX_READ_BYTES: usize = 64 * 1024;
/// Replies are written when they reach this many bytes, even if more commands are complete.
pub(crate) const MAX_BUFFERED_REPLY_BYTES: usize = 64 * 1024;

/// Wrong passwords after which a connection is closed.
const MAX_AUTH_FAILURES: usize = 3;

/// The parts of the listener that a connection uses, and its peer.
#[derive(Clone, Copy)]
pub(crate) struct ConnectionContext<'d> {
    pub(crate) service: &'d Service,
    pub(crate) auth_failures: &'d AuthFailures,
    pub(crate) activity: &'d Activity,
    pub(crate) peer: SocketAddr,
}

/// One client connection and its buffers.
pub(crate) struct RespConnection<'d> {
    stream: Stream,
    context: ConnectionContext<'d>,
    session: RespSession,
    input: BytesMut,
    /// Size of the next read in bytes. It grows and shrinks with the traffic.
    read_bytes: usize,
    replies: ReplyBuffer,
}

/// The next action after a command or a batch of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextAction {
    /// Run further commands of the input.
    Continue,
    /// Read: every complete command was run.
    ReadMore,
    /// Close the connection.
    Close,
}

impl<'d> RespConnection<'d> {
    pub(crate) fn new(
        stream: Stream,
        context: ConnectionContext<'d>,
        session: RespSession,
    ) -> Self {
        Self {
            stream,
            context,
            session,
            input: BytesMut::new(),
            read_bytes: MIN_READ_BYTES,
            replies: ReplyBuffer::default(),
        }
    }

    /// Serves the client until it disconnects or breaks the protocol, or until the listener closes.
    ///
    /// # Errors
    /// A read or a write failed.
    pub(crate) async fn run(mut self) -> io::Result<()> {
        // Connection pools open connections long before they use them: no head timeout yet.
        self.context.activity.set_phase(Phase::Idle);
        loop {
            let next = self.run_commands().await;
            self.write().await?;
            match next {
                NextAction::Continue => {}
                NextAction::Close => {
                    self.context.activity.set_phase(Phase::Head);
                    tokio::select! {
                        () = lingering_close(&mut self.stream) => {}
                        () = self.context.activity.closed() => {}
                    }
                    return Ok(());
                }
                NextAction::ReadMore => {
                    let drained = self.context.activity.is_closing() && self.input.is_empty();
                    // At the end of the input, every complete command has its reply.
                    if drained || self.read().await? == 0 {
                        return self.stream.shutdown().await;
                    }
                }
            }
        }
    }

    /// Runs the complete commands of the input, until the replies have to be written.
    async fn run_commands(&mut self) -> NextAction {
        let Self { context, session, input, replies, .. } = self;
        let ConnectionContext { service, activity, .. } = *context;
        let mut pipeline = Pipeline::new(service.is_synchronous());
        let mut consumed = 0;
        let next = loop {
            if replies.len() >= MAX_BUFFERED_REPLY_BYTES {
                break NextAction::Continue;
            }
            let checks = run_leading_checks(&input[consumed..], service, session, replies);
            if consumed == 0 && checks > 0 {
                activity.set_phase(Phase::Request);
            }
            consumed += checks;
            match Frame::read(&input[consumed..]) {
                Ok(None) => break NextAction::ReadMore,
                Ok(Some(Frame { arguments, length })) => {
                    if consumed == 0 {
                        activity.set_phase(Phase::Request);
                    }
                    let frame = &input[consumed..consumed + length];
                    consumed += length;
                    let next =
                        run_command(arguments, frame, *context, session, &mut pipeline, replies)
                            .await;
                    if next == NextAction::Close {
                        break next;
                    }
                }
                Err(error) => {
                    pipeline.finish(replies).await;
                    let reason = error.reason();
                    let error = RespError::error(format_args!("Protocol error: {error}"));
                    replies.error(&count_rejected(service, error.because(reason)));
                    break NextAction::Close;
                }
            }
        };
        pipeline.finish(replies).await;
        drop(pipeline);
        input.advance(consumed);
        next
    }

    /// Writes all replies. Nothing is read until the client has received them.
    async fn write(&mut self) -> io::Result<()> {
        if self.replies.is_empty() {
            return Ok(());
        }
        self.context.activity.set_phase(Phase::Request);
        self.stream.write_all(self.replies.as_bytes()).await?;
        self.stream.flush().await?;
        self.replies.clear(MAX_BUFFERED_REPLY_BYTES);
        Ok(())
    }

    /// Reads the next bytes and returns their number. Returns 0 at the end of the input, and when the
    /// listener closes while no command is incomplete.
    async fn read(&mut self) -> io::Result<usize> {
        let phase = if self.input.is_empty() { Phase::Idle } else { Phase::Head };
        // Set the phase only once: the timeout of a slow command starts with its first byte.
        if self.context.activity.phase() != phase {
            self.context.activity.set_phase(phase);
        }
        if self.input.is_empty() && self.input.capacity() > 2 * self.read_bytes {
            self.input = BytesMut::new();
        }
        self.input.reserve(self.read_bytes);
        let read = tokio::select! {
            biased;
            read = self.stream.read_buf(&mut self.input) => read?,
            () = self.context.activity.closed(), if self.input.is_empty() => 0,
        };
        if read >= self.read_bytes {
            self.read_bytes = (self.read_bytes * 2).min(MAX_READ_BYTES);
        } else if read < self.read_bytes / 4 {
            self.read_bytes = (self.read_bytes / 2).max(MIN_READ_BYTES);
        }
        Ok(read)
    }
}

/// Runs one command, and writes the reply to a command that fails.
async fn run_command<'b>(
    arguments: Arguments<'b>,
    frame: &[u8],
    context: ConnectionContext<'b>,
    session: &mut RespSession,
    pipeline: &mut Pipeline<'b>,
    replies: &mut ReplyBuffer,
) -> NextAction {
    match arguments.first() {
        None => return NextAction::Continue,
        Some(name) if is_http(name) => {
            tracing::warn!(
                "HTTP request on the RESP listener, closing the connection: a web page may have sent it"
            );
            return NextAction::Close;
        }
        Some(_) => {}
    }
    let (service, failures) = (context.service, session.auth_failures());
    match dispatch(arguments, frame, service, session, pipeline, replies).await {
        Ok(next) => next,
        Err(error) => {
            pipeline.finish(replies).await;
            replies.error(&count_rejected(service, error));
            match session.auth_failures() > failures {
                true => Box::pin(delay_wrong_password(context, session)).await,
                false => NextAction::Continue,
            }
        }
    }
}

/// Runs a command or a whole transaction, or adds the command to the transaction of the client.
///
/// # Errors
/// The command is unknown, invalid, or not allowed at this point.
async fn dispatch<'b>(
    arguments: Arguments<'b>,
    frame: &[u8],
    service: &'b Service,
    session: &mut RespSession,
    pipeline: &mut Pipeline<'b>,
    replies: &mut ReplyBuffer,
) -> Result<NextAction, RespError> {
    let command = CommandSpec::find(&arguments);
    if let Some(transaction) = &mut session.transaction
        && transaction.queue(&command, frame)?
    {
        pipeline.finish(replies).await;
        replies.simple("QUEUED");
        return Ok(NextAction::Continue);
    }
    let command = command?;
    if !session.is_authenticated() && !command.is_allowed_before_auth() {
        return Err(RespError::coded("NOAUTH", "Authentication required."));
    }
    match command.kind {
        CommandKind::Exec => {
            let commands = session.end_transaction()?;
            pipeline.finish(replies).await;
            run_transaction(&commands, service, session, replies).await;
            Ok(NextAction::Continue)
        }
        kind => execute(kind, arguments, service, session, pipeline, replies).await,
    }
}

/// Runs the commands of a transaction as one pipeline, and writes the array of their replies.
async fn run_transaction(
    commands: &QueuedCommands,
    service: &Service,
    session: &mut RespSession,
    replies: &mut ReplyBuffer,
) {
    replies.array(commands.count);
    let mut pipeline = Pipeline::new(service.is_synchronous());
    let mut frames = &commands.frames[..];
    // The frames were complete and their commands valid when they were queued.
    while let Ok(Some(Frame { arguments, length })) = Frame::read(frames)
        && let Ok(command) = CommandSpec::find(&arguments)
    {
        frames = &frames[length..];
        let executed =
            execute(command.kind, arguments, service, session, &mut pipeline, replies).await;
        if let Err(error) = executed {
            pipeline.finish(replies).await;
            replies.error(&count_rejected(service, error));
        }
    }
    pipeline.finish(replies).await;
}

/// Delays the reply to a wrong password. Later commands of the pipeline wait, too.
async fn delay_wrong_password(context: ConnectionContext<'_>, session: &RespSession) -> NextAction {
    let after = context.auth_failures.delay_answer(context.peer).await;
    if after == AfterFailure::Close || session.auth_failures() >= MAX_AUTH_FAILURES {
        return NextAction::Close;
    }
    NextAction::Continue
}

/// Writes the reply to a command, or submits the command to the pipeline.
///
/// # Errors
/// The command is invalid.
async fn execute<'b>(
    kind: CommandKind,
    arguments: Arguments<'b>,
    service: &'b Service,
    session: &mut RespSession,
    pipeline: &mut Pipeline<'b>,
    replies: &mut ReplyBuffer,
) -> Result<NextAction, RespError> {
    match kind {
        CommandKind::Throttle => {
            let throttle = ThrottleCommand::parse(&arguments, &mut session.limits)?;
            if pipeline.is_synchronous() {
                CommandReply::Throttle(throttle.decide(service).await).write(replies);
                return Ok(NextAction::Continue);
            }
            let order = if throttle.is_refund() {
                CommandOrder::Exclusive
            } else {
                CommandOrder::Concurrent
            };
            let decision = async { CommandReply::Throttle(throttle.decide(service).await) };
            pipeline.submit(decision, order, replies).await;
        }
        CommandKind::Check => {
            let call = check::parse(&arguments)?;
            if pipeline.is_synchronous() {
                let reply = ThrottleReply::from_result(service.check(Protocol::Resp, call).await);
                CommandReply::Check(reply).write(replies);
                return Ok(NextAction::Continue);
            }
            let decision = async {
                CommandReply::Check(ThrottleReply::from_result(
                    service.check(Protocol::Resp, call).await,
                ))
            };
            pipeline.submit(decision, CommandOrder::Concurrent, replies).await;
        }
        kind => {
            pipeline.finish(replies).await;
            session.handle(kind, &arguments, replies)?;
            if kind == CommandKind::Quit {
                return Ok(NextAction::Close);
            }
        }
    }
    Ok(NextAction::Continue)
}

/// Counts and logs an invalid command, and returns its error unchanged. The log has no text of the client.
fn count_rejected(service: &Service, error: RespError) -> RespError {
    if let Some(reason) = error.reason {
        let rejected = CallError::invalid("command", "another one", "a valid command");
        let _ = service.count_rejected(Protocol::Resp, rejected.because(reason));
    }
    error
}

/// Returns `true` for the first word of an HTTP request line or header. Redis rejects the same two words.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:")
}

#[cfg(test)]
mod tests;
