//! Clients that mean harm or know no better: every listener stays open to the others, and gives back what
//! they took.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use tidegate_testkit::wait_for;

use crate::kit::Server;

/// Connections that are open at the same time.
const CROWD: usize = 2_000;
/// Most memory that one of them may cost, in bytes. Futures of a build without optimisation are larger.
const EACH: usize = if cfg!(debug_assertions) { 96 * 1024 } else { 64 * 1024 };
/// How much somebody sends who does not read the answers, in bytes.
const FLOOD: usize = 256 * 1024;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty SETTINGS frame, and a PING.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
const PING: &[u8] = &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

/// What is said on a listener.
struct Speech {
    listener: &'static str,
    /// What a connection begins with, if anything.
    hello: &'static [u8],
    /// Something that is answered.
    question: &'static [u8],
    /// How much of the answer tells that it is one.
    answer: &'static [u8],
}

const SPEECHES: [Speech; 3] = [
    Speech {
        listener: "http",
        hello: b"",
        question: b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n",
        answer: b"HTTP/1.1 200 OK\r\n",
    },
    Speech {
        listener: "resp",
        hello: b"",
        question: b"*1\r\n$4\r\nPING\r\n",
        answer: b"+PONG\r\n",
    },
    // A server's first frame is its SETTINGS, whatever it is asked.
    Speech { listener: "grpc", hello: PREFACE, question: SETTINGS, answer: &[0, 0] },
];

impl Speech {
    fn connect(&self, address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(self.hello).unwrap();
        stream
    }

    /// Asks as somebody does who means no harm.
    fn assert_answered(&self, address: SocketAddr) {
        let mut stream = self.connect(address);
        stream.write_all(self.question).unwrap();
        let mut answer = vec![0; self.answer.len()];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, self.answer, "{}", self.listener);
    }

    /// Asks without end and reads nothing, until nothing more can be sent.
    fn flood(&self, stream: &mut TcpStream) {
        let again = if self.listener == "grpc" { PING } else { self.question };
        let many = again.repeat(4096 / again.len());
        stream.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while sent < FLOOD {
            match stream.write(&many) {
                Ok(written) => sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // It was cut off, which is an answer too.
                Err(_) => return,
            }
        }
    }
}

/// Resident memory of a process in bytes.
fn memory(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

fn open_files(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

/// A server that other tests starve of its cores closes connections that it could not read in time.
mod serial {
    use super::*;

    #[test]
    fn a_crowd_that_idles_dawdles_and_floods_hurts_nobody_and_leaves_nothing() {
        let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
        for speech in &SPEECHES {
            let address = server.listener(speech.listener);
            speech.assert_answered(address);
            let (memory_before, files_before) = (memory(server.id()), open_files(server.id()));
            let mut crowd: Vec<TcpStream> = Vec::with_capacity(CROWD);
            for number in 0..CROWD {
                let mut stream = speech.connect(address);
                match number % 4 {
                    0 => {}
                    1 => stream.write_all(&speech.question[..speech.question.len() / 2]).unwrap(),
                    2 => stream.write_all(speech.question).unwrap(),
                    _ => speech.flood(&mut stream),
                }
                crowd.push(stream);
                if number % 500 == 499 {
                    speech.assert_answered(address);
                }
            }
            let taken = memory(server.id()).saturating_sub(memory_before);
            assert!(taken < CROWD * EACH, "{}: {} bytes each", speech.listener, taken / CROWD);
            drop(crowd);
            wait_for("the crowd's files to be closed", || {
                (open_files(server.id()) <= files_before + 2).then_some(())
            });
            speech.assert_answered(address);
        }
    }
}

#[test]
fn whoever_stops_sending_still_gets_the_answer() {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    for speech in &SPEECHES {
        let mut stream = speech.connect(server.listener(speech.listener));
        stream.write_all(speech.question).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(speech.answer), "{}: {answer:?}", speech.listener);
    }
}

#[test]
fn garbage_ends_its_own_connection_and_no_other() {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    // A generator with a fixed seed: the same bytes in every run.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for speech in &SPEECHES {
        let address = server.listener(speech.listener);
        let files = open_files(server.id());
        let mut good = speech.connect(address);
        for round in 0..300 {
            let mut bytes: Vec<u8> = (0..256).flat_map(|_| next().to_le_bytes()).collect();
            // Some begin well.
            let start = [b"".as_slice(), speech.question, b"*3\r\n$", PREFACE][round % 4];
            bytes.splice(0..0, start.iter().copied());
            let mut stream = speech.connect(address);
            // It may hang up before it has read all of this.
            let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(Shutdown::Write));
            let _ = stream.read_to_end(&mut Vec::new());
        }
        good.write_all(speech.question).unwrap();
        let mut answer = vec![0; speech.answer.len()];
        good.read_exact(&mut answer).unwrap();
        assert_eq!(answer, speech.answer, "{}", speech.listener);
        drop(good);
        wait_for("the files to be closed", || (open_files(server.id()) <= files + 2).then_some(()));
    }
}
