//! A server inside this process, on a separate thread.

use std::net::{SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};

use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::listener::listen;

/// Accepts connections on a loopback port, until this value is dropped: then the port is free again and
/// every connection is closed, with whatever was under way.
#[derive(Debug)]
pub(crate) struct LoopbackServer {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl LoopbackServer {
    /// Opens a port, any free one if `port` is 0. `welcome` is given each connection, inside of a runtime.
    pub(crate) fn open(port: u16, welcome: impl Fn(TcpStream) + Send + 'static) -> Self {
        let listener = listen(port);
        let address = listener.local_addr().expect("a bound listener has an address");
        let (stop, stopped) = watch::channel(false);
        let thread = thread::spawn(move || serve(listener, &welcome, stopped));
        Self { address, stop, thread: Some(thread) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for LoopbackServer {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Accepts connections. All tasks end with the runtime.
fn serve(listener: TcpListener, welcome: &impl Fn(TcpStream), mut stopped: watch::Receiver<bool>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be made").block_on(async {
        listener.set_nonblocking(true).expect("a listener can be non-blocking");
        let listener = tokio::net::TcpListener::from_std(listener).expect("inside a runtime");
        loop {
            tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => return,
                Ok((client, _)) = listener.accept() => {
                    let _ = client.set_nodelay(true);
                    welcome(client);
                }
            }
        }
    });
}
