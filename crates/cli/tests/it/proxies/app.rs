//! An application behind a proxy: echoes each request, and returns 403 for `/forbidden`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

pub(crate) struct EchoApp {
    address: SocketAddr,
    received: Arc<Mutex<Vec<String>>>,
    closing: Arc<AtomicBool>,
    accept_thread: Option<JoinHandle<()>>,
}

impl EchoApp {
    pub(crate) fn start() -> Self {
        let listener = tidegate_testkit::listen(0);
        let address = listener.local_addr().unwrap();
        let (received, closing) =
            (Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicBool>::default());
        let (thread_received, is_closing) = (Arc::clone(&received), Arc::clone(&closing));
        let accept_thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if is_closing.load(Ordering::Relaxed) {
                    return;
                }
                let thread_received = Arc::clone(&thread_received);
                // The thread ends when the proxy closes the connection.
                thread::spawn(move || serve(stream.unwrap(), &thread_received));
            }
        });
        Self { address, received, closing, accept_thread: Some(accept_thread) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of received requests that start with `prefix`.
    pub(crate) fn count_received(&self, prefix: &str) -> usize {
        self.received.lock().unwrap().iter().filter(|request| request.starts_with(prefix)).count()
    }
}

impl Drop for EchoApp {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        // Wakes the accept loop, which may not get another connection.
        let _ = TcpStream::connect(self.address);
        let _ = self.accept_thread.take().map(JoinHandle::join);
    }
}

fn serve(stream: TcpStream, received: &Mutex<Vec<String>>) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read_request(&mut stream) {
        received.lock().unwrap().push(request.clone());
        let status = if request.contains(" /forbidden") { "403 Forbidden" } else { "200 OK" };
        let length = request.len();
        let response = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{request}");
        if stream.get_mut().write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}

/// Reads a request as `POST /orders body`. Returns nothing at the end of the connection.
fn read_request(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    stream.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let request = line.rsplit_once(' ')?.0.to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).ok()?;
        match header.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.parse().unwrap();
            }
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(format!("{request} {}", String::from_utf8(body).unwrap()))
}
