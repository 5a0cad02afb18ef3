//! Reads the one message of a call, with a bounded length.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tokio::sync::{Semaphore, SemaphorePermit};
use tonic::Status;

use crate::grpc::body::PREFIX_BYTES;

/// Longest message, in bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// Most bytes of a rejected message that are read before the reply.
const MAX_DROPPED_BYTES: usize = 4 * 1024 * 1024;
/// Messages up to this many bytes are not counted in the [`MessageBudget`].
const MAX_UNCOUNTED_BYTES: usize = 4 * 1024;

/// Free memory for large messages. One permit is one KiB.
pub(crate) struct MessageBudget(Semaphore);

impl MessageBudget {
    pub(crate) fn new(kib: usize) -> Self {
        Self(Semaphore::new(kib))
    }

    /// Reserves memory for a message of this length. A small message needs no permit.
    fn reserve(&self, length: usize) -> Result<Option<SemaphorePermit<'_>>, Status> {
        if length <= MAX_UNCOUNTED_BYTES {
            return Ok(None);
        }
        let kib = u32::try_from(length.div_ceil(1024)).unwrap_or(u32::MAX);
        let permit = self.0.try_acquire_many(kib);
        permit.map(Some).map_err(|_| Status::resource_exhausted("too many long messages at once"))
    }
}

/// Reads the message of a call. The permit holds its memory.
///
/// # Errors
/// The message is missing, too long, compressed or incomplete; there is more than one; or too many large
/// messages are in memory.
pub(crate) async fn read(
    mut body: Incoming,
    budget: &MessageBudget,
) -> Result<(Bytes, Option<SemaphorePermit<'_>>), Status> {
    let mut read = Bytes::new();
    while read.len() < PREFIX_BYTES {
        read = concat(read, next_data(&mut body).await?.ok_or_else(|| incomplete("message"))?);
    }
    let reserved = length(&read).and_then(|length| Ok((length, budget.reserve(length)?)));
    let (length, permit) = match reserved {
        Ok(reserved) => reserved,
        Err(error) => {
            drop_rest(body).await;
            return Err(error);
        }
    };
    if read.len() < PREFIX_BYTES + length {
        let mut whole = BytesMut::with_capacity(PREFIX_BYTES + length);
        whole.put(read);
        while whole.len() < PREFIX_BYTES + length {
            whole.put(next_data(&mut body).await?.ok_or_else(|| incomplete("message"))?);
        }
        read = whole.freeze();
    }
    // Read to the end of the request first: some clients treat an earlier reply as a reset.
    let ended = body.is_end_stream() || next_data(&mut body).await?.is_none();
    if read.len() > PREFIX_BYTES + length || !ended {
        return Err(Status::unimplemented("message: found several, wanted one"));
    }
    read.advance(PREFIX_BYTES);
    Ok((read, permit))
}

/// Returns the length of the message from its prefix.
fn length(prefix: &Bytes) -> Result<usize, Status> {
    let mut prefix = prefix.clone();
    if prefix.get_u8() != 0 {
        return Err(Status::unimplemented("message: found a compressed one, wanted a plain one"));
    }
    let length = usize::try_from(prefix.get_u32()).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE_BYTES {
        let found = format!("message: found {length} bytes, wanted at most {MAX_MESSAGE_BYTES}");
        return Err(Status::resource_exhausted(found));
    }
    Ok(length)
}

/// Returns the next non-empty data frame, or `None` at the end of the body.
async fn next_data(body: &mut Incoming) -> Result<Option<Bytes>, Status> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| incomplete(&error.to_string()))?;
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) => return Ok(Some(data)),
            // Trailers end the body.
            Err(_) => return Ok(None),
        }
    }
    Ok(None)
}

/// Reads and drops the rest of a request that is rejected: some clients treat an earlier reply as a reset.
async fn drop_rest(mut body: Incoming) {
    let mut dropped = 0;
    while dropped < MAX_DROPPED_BYTES
        && let Ok(Some(data)) = next_data(&mut body).await
    {
        dropped += data.len();
    }
}

fn concat(read: Bytes, more: Bytes) -> Bytes {
    if read.is_empty() {
        return more;
    }
    let mut both = BytesMut::with_capacity(read.len() + more.len());
    both.put(read);
    both.put(more);
    both.freeze()
}

fn incomplete(cause: &str) -> Status {
    Status::internal(format!("body: found an end too early ({cause}), wanted all of it"))
}
