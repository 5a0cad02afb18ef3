//! The application behind the proxy: it says what it was asked, and forbids one path.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Answers `METHOD PATH` until it is dropped; `/forbidden` with 403.
pub(crate) struct Application {
    pub(crate) address: SocketAddr,
    closing: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Application {
    pub(crate) fn start() -> Self {
        let listener = tidegate_testkit::listen(0);
        let address = listener.local_addr().unwrap();
        let closing = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&closing);
        let accepting = thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if told.load(Ordering::SeqCst) {
                    return;
                }
                // A connection ends with the proxy that made it.
                thread::spawn(move || serve(&stream));
            }
        });
        Self { address, closing, accepting: Some(accepting) }
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        // Whoever accepts is woken up by being asked once more.
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
        let said = request.trim_end_matches(" HTTP/1.1");
        let status = if said.ends_with(" /forbidden") { "403 Forbidden" } else { "200 OK" };
        let length = said.len();
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{said}");
        let mut stream = stream;
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
