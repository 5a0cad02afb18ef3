//! An application behind Envoy that echoes the request line and forbids one path.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// An HTTP server that responds with `METHOD PATH` until it is dropped, and with 403 to `/forbidden`.
pub(crate) struct EchoApplication {
    pub(crate) address: SocketAddr,
    closing: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl EchoApplication {
    pub(crate) fn start() -> Self {
        let listener = tidegate_testkit::listen(0);
        let address = listener.local_addr().unwrap();
        let closing = Arc::new(AtomicBool::new(false));
        let is_closing = Arc::clone(&closing);
        let accepting = thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if is_closing.load(Ordering::SeqCst) {
                    return;
                }
                // The thread ends when Envoy closes its connection.
                thread::spawn(move || serve(&stream));
            }
        });
        Self { address, closing, accepting: Some(accepting) }
    }
}

impl Drop for EchoApplication {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        // One more connection wakes the accepting thread, which then reads the flag.
        let woken = TcpStream::connect(self.address).is_ok();
        if let (true, Some(accepting)) = (woken, self.accepting.take()) {
            let _ = accepting.join();
        }
    }
}

fn serve(stream: &TcpStream) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while let Some(request) = lines.next() {
        if lines.by_ref().take_while(|line| !line.is_empty()).count() == 0 {
            return;
        }
        let request_line = request.trim_end_matches(" HTTP/1.1");
        let status = if request_line.ends_with(" /forbidden") { "403 Forbidden" } else { "200 OK" };
        let length = request_line.len();
        let response =
            format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{request_line}");
        let mut stream = stream;
        if stream.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}
