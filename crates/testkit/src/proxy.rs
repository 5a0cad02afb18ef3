//! A network that misbehaves on request.

mod pipe;

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;

use pipe::{Direction, Pipe};

use crate::listener::listen;

/// A TCP proxy in front of a server, which forwards everything until a fault is set.
///
/// Faults apply to open and to new connections.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<ProxyState>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// The faults of the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProxyFault {
    Delay { requests: Duration, replies: Duration },
    Stall,
    Refuse,
}

impl ProxyFault {
    fn delay(self, direction: Direction) -> Duration {
        match (self, direction) {
            (Self::Delay { requests, .. }, Direction::Requests) => requests,
            (Self::Delay { replies, .. }, Direction::Replies) => replies,
            (Self::Stall | Self::Refuse, _) => Duration::ZERO,
        }
    }
}

const PASS: ProxyFault = ProxyFault::Delay { requests: Duration::ZERO, replies: Duration::ZERO };

#[derive(Debug)]
struct ProxyState {
    target: String,
    fault: watch::Sender<ProxyFault>,
    /// After how many more bytes of replies a connection is to be cut: whichever carries the next one.
    next_cut: Mutex<Option<usize>>,
    /// Grows when all open connections are to be dropped.
    drops: watch::Sender<usize>,
    made: AtomicUsize,
    open: AtomicUsize,
    cut: AtomicUsize,
}

impl FaultProxy {
    /// Creates a proxy in front of `target`, an address like that of [`Redis::address`](crate::Redis::address).
    ///
    /// # Panics
    /// The listener cannot be opened.
    pub fn to(target: impl Into<String>) -> Self {
        let listener = listen(0);
        let address = listener.local_addr().expect("a bound listener has an address");
        let shared = Arc::new(ProxyState {
            target: target.into(),
            fault: watch::Sender::new(PASS),
            next_cut: Mutex::new(None),
            drops: watch::Sender::new(0),
            made: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            cut: AtomicUsize::new(0),
        });
        let (stop, stopped) = watch::channel(false);
        let serving = shared.clone();
        let thread = thread::spawn(move || serve(listener, &serving, stopped));
        Self { address, shared, stop, thread: Some(thread) }
    }

    /// Returns the address of its listener: `127.0.0.1:port`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns `redis://127.0.0.1:port`
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Passes everything on, as at the start. What [`stall`](Self::stall) held back is delivered now.
    pub fn pass(&self) {
        self.shared.fault.send_replace(PASS);
        *self.shared.next_cut() = None;
    }

    /// Requests and replies take so much longer each.
    pub fn delay(&self, by: Duration) {
        self.shared.fault.send_replace(ProxyFault::Delay { requests: by, replies: by });
    }

    /// Replies take so much longer; requests arrive at once.
    pub fn delay_replies(&self, by: Duration) {
        self.shared.fault.send_replace(ProxyFault::Delay { requests: Duration::ZERO, replies: by });
    }

    /// Accepts connections and forwards nothing, in either direction.
    pub fn stall(&self) {
        self.shared.fault.send_replace(ProxyFault::Stall);
    }

    /// Forwards that many bytes of the next reply, whichever connection it comes on, and then cuts that connection. Once.
    ///
    /// With 0 the server executes the command, and its whole reply is lost.
    pub fn cut_reply_after(&self, bytes: usize) {
        *self.shared.next_cut() = Some(bytes);
    }

    /// Closes every new connection at once. The open ones go on.
    pub fn refuse(&self) {
        self.shared.fault.send_replace(ProxyFault::Refuse);
    }

    /// Closes every open connection, with whatever was under way.
    pub fn drop_connections(&self) {
        self.shared.drops.send_modify(|drops| *drops += 1);
    }

    /// Returns the number of connections so far, with refused ones.
    pub fn connections(&self) -> usize {
        self.shared.made.load(Ordering::SeqCst)
    }

    /// Returns the number of open connections.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Returns the number of connections that it ended itself: refused, dropped, or cut in a reply. It counts one before the
    /// client can learn of it.
    pub fn cut(&self) -> usize {
        self.shared.cut.load(Ordering::SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Accepts connections until it is stopped; then all of them end with the runtime.
fn serve(listener: TcpListener, shared: &Arc<ProxyState>, mut stopped: watch::Receiver<bool>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be made").block_on(async {
        listener.set_nonblocking(true).expect("a listener can be non-blocking");
        let listener = tokio::net::TcpListener::from_std(listener).expect("inside a runtime");
        loop {
            tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => return,
                Ok((client, _)) = listener.accept() => shared.clone().welcome(client),
            }
        }
    });
}

impl ProxyState {
    fn next_cut(&self) -> MutexGuard<'_, Option<usize>> {
        self.next_cut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn welcome(self: Arc<Self>, client: TcpStream) {
        self.made.fetch_add(1, Ordering::SeqCst);
        if *self.fault.borrow() == ProxyFault::Refuse {
            self.cut.fetch_add(1, Ordering::SeqCst);
            return;
        }
        self.open.fetch_add(1, Ordering::SeqCst);
        let mut drops = self.drops.subscribe();
        tokio::spawn(async move {
            let dropped = async {
                let _ = drops.changed().await;
                self.cut.fetch_add(1, Ordering::SeqCst);
            };
            tokio::select! {
                () = dropped => (),
                () = self.connect(client) => (),
            }
            self.open.fetch_sub(1, Ordering::SeqCst);
        });
    }

    async fn connect(&self, client: TcpStream) {
        let Ok(server) = TcpStream::connect(&self.target).await else { return };
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let requests = Pipe::new(self, Direction::Requests, to_server);
        let replies = Pipe::new(self, Direction::Replies, to_client);
        // The first error ends both directions.
        let _ = tokio::try_join!(requests.run(from_client), replies.run(from_server));
    }
}
