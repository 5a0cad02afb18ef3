//! The stream of an HTTP/1 connection to a server, which outlives a request body that ended early.
//!
//! hyper drops the stream when a body ends early. The server may still work on the request. The stream is therefore kept
//! for the holder of the request's places: it shuts the sending side down, and waits until the server closes too.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::request_body::UploadProgress;

/// A stream of any kind.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// The state of a connection that its stream and its requests share.
#[derive(Default)]
pub(crate) struct TruncatedUpload {
    /// The last upload. If it ends early, the stream is kept.
    upload: Mutex<Option<Arc<UploadProgress>>>,
    /// The stream, after that upload has failed.
    stream: Mutex<Option<Box<dyn ByteStream>>>,
}

impl std::fmt::Debug for TruncatedUpload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TruncatedUpload").finish_non_exhaustive()
    }
}

impl TruncatedUpload {
    /// Keeps the stream if this upload ends early.
    pub(crate) fn watch(&self, upload: Arc<UploadProgress>) {
        *self.upload.lock() = Some(upload);
    }

    /// Shuts the sending side of a kept stream down, and waits until the server responds or closes.
    pub(crate) async fn server_ended(&self) {
        let stream = self.stream.lock().take();
        if let Some(mut stream) = stream
            && stream.shutdown().await.is_ok()
        {
            let _ = stream.read(&mut [0; 1]).await;
        }
    }
}

/// The stream of one connection to a server.
#[derive(Debug)]
pub(crate) struct UpstreamStream<S: ByteStream + 'static> {
    /// `None` only while it is dropped.
    stream: Option<S>,
    truncated: Arc<TruncatedUpload>,
}

impl<S: ByteStream + 'static> UpstreamStream<S> {
    pub(crate) fn new(stream: S, truncated: Arc<TruncatedUpload>) -> Self {
        Self { stream: Some(stream), truncated }
    }

    fn stream(&mut self) -> io::Result<Pin<&mut S>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl<S: ByteStream + 'static> Drop for UpstreamStream<S> {
    fn drop(&mut self) {
        let upload = self.truncated.upload.lock().take();
        if let Some(stream) = self.stream.take()
            && upload.is_some_and(|upload| upload.has_failed())
        {
            *self.truncated.stream.lock() = Some(Box::new(stream));
        }
    }
}

impl<S: ByteStream + 'static> AsyncRead for UpstreamStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(context, buffer)
    }
}

impl<S: ByteStream + 'static> AsyncWrite for UpstreamStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }
}
