//! From a request to its one message, which is never longer than somebody is ready to read.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tokio::sync::{Semaphore, SemaphorePermit};
use tonic::Status;

use super::body::PREFIX;

/// Longest message in bytes.
pub(super) const MAX_MESSAGE: usize = 1024 * 1024;
/// Messages up to this many bytes are not counted against what all of them may take.
const SMALL: usize = 4 * 1024;

/// Room for long messages, in KiB.
pub(super) struct Room(Semaphore);

impl Room {
    pub(super) fn new(kib: usize) -> Self {
        Self(Semaphore::new(kib))
    }

    /// A part of the room, for a message of this length.
    fn take(&self, length: usize) -> Result<Option<SemaphorePermit<'_>>, Status> {
        if length <= SMALL {
            return Ok(None);
        }
        let kib = u32::try_from(length.div_ceil(1024)).unwrap_or(u32::MAX);
        let taken = self.0.try_acquire_many(kib);
        taken.map(Some).map_err(|_| Status::resource_exhausted("too many long messages at once"))
    }
}

/// The message of a call, and the room it takes while it is needed.
///
/// # Errors
/// There is none, it is too long, compressed or cut off, there is more than one, or there is no room.
pub(super) async fn read(
    mut body: Incoming,
    room: &Room,
) -> Result<(Bytes, Option<SemaphorePermit<'_>>), Status> {
    let mut read = Bytes::new();
    while read.len() < PREFIX {
        read = joined(read, data(&mut body).await?.ok_or_else(|| cut_off("message"))?);
    }
    let length = length(&read)?;
    let taken = room.take(length)?;
    if read.len() < PREFIX + length {
        let mut whole = BytesMut::with_capacity(PREFIX + length);
        whole.put(read);
        while whole.len() < PREFIX + length {
            whole.put(data(&mut body).await?.ok_or_else(|| cut_off("message"))?);
        }
        read = whole.freeze();
    }
    // A reply that overtakes the end of the request would look like a reset to some clients.
    let ended = body.is_end_stream() || data(&mut body).await?.is_none();
    if read.len() > PREFIX + length || !ended {
        return Err(Status::unimplemented("message: found several, wanted one"));
    }
    read.advance(PREFIX);
    Ok((read, taken))
}

/// What the prefix says about the length of the message.
fn length(prefix: &Bytes) -> Result<usize, Status> {
    let mut prefix = prefix.clone();
    if prefix.get_u8() != 0 {
        return Err(Status::unimplemented("message: found a compressed one, wanted a plain one"));
    }
    let length = usize::try_from(prefix.get_u32()).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE {
        let found = format!("message: found {length} bytes, wanted at most {MAX_MESSAGE}");
        return Err(Status::resource_exhausted(found));
    }
    Ok(length)
}

/// The next bytes of a body that are any; nothing at its end.
async fn data(body: &mut Incoming) -> Result<Option<Bytes>, Status> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| cut_off(&error.to_string()))?;
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) => return Ok(Some(data)),
            // Trailers are the end.
            Err(_) => return Ok(None),
        }
    }
    Ok(None)
}

fn joined(read: Bytes, more: Bytes) -> Bytes {
    if read.is_empty() {
        return more;
    }
    let mut joined = BytesMut::with_capacity(read.len() + more.len());
    joined.put(read);
    joined.put(more);
    joined.freeze()
}

fn cut_off(what: &str) -> Status {
    Status::internal(format!("body: found an end too early ({what}), wanted all of it"))
}
