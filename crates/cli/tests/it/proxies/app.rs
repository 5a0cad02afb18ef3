//! The application behind a proxy: says what it was asked, and forbids `/forbidden`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

pub(crate) struct App {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    closing: Arc<AtomicBool>,
    serving: Option<JoinHandle<()>>,
}

impl App {
    pub(crate) fn start() -> Self {
        let listener = tidegate_testkit::listen(0);
        let address = listener.local_addr().unwrap();
        let (seen, closing) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicBool>::default());
        let (noted, closed) = (Arc::clone(&seen), Arc::clone(&closing));
        let serving = thread::spawn(move || {
            for stream in listener.incoming() {
                if closed.load(Ordering::Relaxed) {
                    return;
                }
                let noted = Arc::clone(&noted);
                // It ends with its connection, which ends with the proxy.
                thread::spawn(move || serve(stream.unwrap(), &noted));
            }
        });
        Self { address, seen, closing, serving: Some(serving) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many requests began like this.
    pub(crate) fn seen(&self, line: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|seen| seen.starts_with(line)).count()
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        // Nobody else may ever come.
        let _ = TcpStream::connect(self.address);
        let _ = self.serving.take().map(JoinHandle::join);
    }
}

fn serve(stream: TcpStream, seen: &Mutex<Vec<String>>) {
    let mut stream = BufReader::new(stream);
    while let Some(asked) = request(&mut stream) {
        seen.lock().unwrap().push(asked.clone());
        let status = if asked.contains(" /forbidden") { "403 Forbidden" } else { "200 OK" };
        let length = asked.len();
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{asked}");
        if stream.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// `POST /orders body`, or nothing once the connection has ended.
fn request(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    stream.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let asked = line.rsplit_once(' ')?.0.to_owned();
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
    Some(format!("{asked} {}", String::from_utf8(body).unwrap()))
}
