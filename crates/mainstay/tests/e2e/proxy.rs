//! A TCP proxy between a client and a server, at which connections go wrong in ways that no well-behaved server shows.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};

/// A proxy to one server. Dropping it cuts every connection.
pub(crate) struct Proxy {
    address: SocketAddr,
    faults: watch::Sender<Faults>,
    words: broadcast::Sender<Vec<u8>>,
    connections: Arc<AtomicUsize>,
}

/// What goes wrong.
#[derive(Clone, Copy, Default)]
struct Faults {
    /// Nothing passes in either direction, and nobody is told.
    frozen: bool,
    /// Grows when every connection is cut.
    cuts: u64,
    /// What the server says passes in pieces of this size.
    piece: Option<usize>,
    /// After so many bytes from the server a connection is cut.
    limit: Option<usize>,
}

impl Proxy {
    /// Begins to pass connections on to `target`.
    pub(crate) async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (faults, words) = (watch::Sender::new(Faults::default()), broadcast::Sender::new(16));
        let connections = Arc::new(AtomicUsize::new(0));
        let (mut dropped, seen) = (faults.subscribe(), faults.subscribe());
        let (to_say, counter) = (words.clone(), connections.clone());
        let accept = async move {
            while let Ok((client, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(pass_on(client, target, seen.clone(), to_say.subscribe()));
            }
        };
        tokio::spawn(async move {
            tokio::select! {
                () = accept => {}
                () = until(&mut dropped, |_| false) => {}
            }
        });
        Self { address, faults, words, connections }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections were made through it.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// From now on every byte gets stuck, on old connections and new ones, and nobody is told; or no more.
    pub(crate) fn freeze(&self, on: bool) {
        self.faults.send_modify(|faults| faults.frozen = on);
    }

    /// Cuts every connection.
    pub(crate) fn cut(&self) {
        self.faults.send_modify(|faults| faults.cuts += 1);
    }

    /// Cuts every connection after so many bytes from the server, wherever that is.
    pub(crate) fn cut_after(&self, bytes: Option<usize>) {
        self.faults.send_modify(|faults| faults.limit = bytes);
    }

    /// Passes on what the server says in pieces of this size.
    pub(crate) fn dribble(&self, bytes: usize) {
        self.faults.send_modify(|faults| faults.piece = Some(bytes));
    }

    /// Says something in the name of the server, on every connection. To be used while the server is silent.
    pub(crate) fn say(&self, frame: Vec<u8>) {
        self.words.send(frame).expect("a connection");
    }
}

/// A GOAWAY frame (RFC 9113, section 6.8): streams up to `last` are finished, no others.
pub(crate) fn goaway(last: u32) -> Vec<u8> {
    let payload = [last.to_be_bytes(), 0u32.to_be_bytes()].concat();
    [&[0, 0, 8, 7, 0, 0, 0, 0, 0], &payload[..]].concat()
}

/// An RST_STREAM frame (RFC 9113, section 6.4).
pub(crate) fn reset(stream: u32, code: u32) -> Vec<u8> {
    let payload = code.to_be_bytes();
    [&[0, 0, 4, 3, 0], &stream.to_be_bytes()[..], &payload[..]].concat()
}

async fn pass_on(
    client: TcpStream,
    target: SocketAddr,
    mut faults: watch::Receiver<Faults>,
    words: broadcast::Receiver<Vec<u8>>,
) {
    let cuts = faults.borrow_and_update().cuts;
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        () = copy(from_client, to_server, faults.clone(), None) => {}
        () = copy(from_server, to_client, faults.clone(), Some(words)) => {}
        // Also when the proxy was dropped.
        () = until(&mut faults, |faults| faults.cuts > cuts) => {}
    }
}

/// Waits for faults, or for the end of the proxy.
async fn until(faults: &mut watch::Receiver<Faults>, holds: impl FnMut(&Faults) -> bool) {
    let _ = faults.wait_for(holds).await;
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut faults: watch::Receiver<Faults>,
    mut words: Option<broadcast::Receiver<Vec<u8>>>,
) {
    let of_server = words.is_some();
    let mut passed = 0;
    let mut buffer = vec![0; 16 << 10];
    loop {
        until(&mut faults, |faults| !faults.frozen).await;
        let word = async {
            match &mut words {
                Some(words) => words.recv().await,
                None => std::future::pending().await,
            }
        };
        let read = tokio::select! {
            word = word => match word {
                Ok(word) => match to.write_all(&word).await {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                Err(_) => return,
            },
            read = from.read(&mut buffer) => match read {
                Ok(read) if read > 0 => read,
                _ => return,
            },
            // What is read after this gets stuck.
            () = until(&mut faults, |faults| faults.frozen) => continue,
        };
        let Faults { piece, limit, .. } = *faults.borrow();
        let limit = limit.filter(|_| of_server).unwrap_or(usize::MAX);
        let let_pass = read.min(limit.saturating_sub(passed));
        let piece = piece.filter(|_| of_server).unwrap_or(let_pass).max(1);
        for part in buffer[..let_pass].chunks(piece) {
            if to.write_all(part).await.is_err() {
                return;
            }
        }
        passed += let_pass;
        if let_pass < read || passed >= limit {
            return;
        }
    }
}
