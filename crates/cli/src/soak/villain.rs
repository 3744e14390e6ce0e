//! Backends that mean no good.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mainstay_sim::Seeded;
use mainstay_xds::Choose as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tonic::metadata::BinaryMetadataValue;

/// A backend that does something else to each connection.
pub(super) struct Villain {
    address: SocketAddr,
    connections: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

/// What is done to a connection.
#[derive(Clone, Copy, Debug)]
enum Mode {
    /// Pings without end, each of which wants an answer.
    Flood,
    /// Ends its side, and reads on.
    HalfClose,
    /// Resets every stream.
    Reset,
    /// Answers a byte at a time.
    Drip,
    /// Answers well, and reports an absurd load.
    Lie,
    /// Says GOAWAY at once.
    GoAway,
    /// Takes everything and says nothing.
    Silent,
    /// Does not speak HTTP/2 after its first word.
    Garbage,
}

impl Villain {
    pub(super) async fn start(seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, connections) = (listener.local_addr()?, Arc::new(AtomicU64::new(0)));
        let counter = Arc::clone(&connections);
        let accepting = tokio::spawn(async move {
            let mut dice = Seeded::new(seed);
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::Relaxed);
                let mode = MODES[usize::try_from(dice.choose(MODES.len() as u64)).unwrap_or_default()];
                // What becomes of the connection is the client's business.
                tokio::spawn(async move { tokio::time::timeout(ATTENTION, mode.show(stream)).await });
            }
        });
        Ok(Self { address, connections, accepting })
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.address
    }

    /// How many connections were made to it.
    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Villain {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Mode {
    async fn show(self, mut stream: TcpStream) -> io::Result<()> {
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
        match self {
            Self::Flood => {
                let pings = frame(PING, 0, 0, b"villains").repeat(64);
                let (mut from, mut to) = stream.split();
                let answers = async {
                    let mut buffer = [0; 4096];
                    while from.read(&mut buffer).await? > 0 {}
                    Ok(())
                };
                let flood = async {
                    loop {
                        to.write_all(&pings).await?;
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                };
                tokio::select! {
                    ended = answers => ended,
                    ended = flood => ended,
                }
            }
            Self::HalfClose => {
                stream.shutdown().await?;
                Requests::of(stream).each(|_| Vec::new()).await
            }
            Self::Reset => {
                let mut codes = [7, 8, 2, 11].iter().cycle();
                Requests::of(stream)
                    .each(|request| vec![frame(RST_STREAM, 0, request, &[0, 0, 0, codes.next().copied().unwrap_or(8)])])
                    .await
            }
            Self::Drip => {
                Requests::of(stream)
                    .each(|request| {
                        let begin = frame(HEADERS, END_HEADERS, request, &headers());
                        let bytes = (0..64).map(|_| frame(DATA, 0, request, &[0]));
                        [begin].into_iter().chain(bytes).collect()
                    })
                    .await
            }
            Self::Lie => {
                Requests::of(stream)
                    .each(|request| {
                        vec![
                            [
                                frame(HEADERS, END_HEADERS, request, &headers()),
                                frame(DATA, 0, request, &[0; 5]),
                                frame(HEADERS, END_HEADERS | END_STREAM, request, &lies()),
                            ]
                            .concat(),
                        ]
                    })
                    .await
            }
            Self::GoAway => {
                stream.write_all(&frame(GOAWAY, 0, 0, &[0; 8])).await?;
                stream.shutdown().await
            }
            Self::Silent => Requests::of(stream).each(|_| Vec::new()).await,
            Self::Garbage => {
                stream.write_all(&[0xff; 100]).await?;
                Requests::of(stream).each(|_| Vec::new()).await
            }
        }
    }
}

/// The requests on a connection.
struct Requests {
    stream: TcpStream,
    bytes: Vec<u8>,
    greeted: bool,
}

impl Requests {
    fn of(stream: TcpStream) -> Self {
        Self { stream, bytes: Vec::new(), greeted: false }
    }

    /// Says to each request, by its stream, what `answer` has to say, with a pause between the pieces.
    async fn each(mut self, mut answer: impl FnMut(u32) -> Vec<Vec<u8>>) -> io::Result<()> {
        let mut buffer = [0; 4096];
        loop {
            let read = self.stream.read(&mut buffer).await?;
            if read == 0 {
                return Ok(());
            }
            self.bytes.extend_from_slice(&buffer[..read]);
            while let Some(request) = self.next() {
                for (number, piece) in answer(request).into_iter().enumerate() {
                    if number > 0 {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    self.stream.write_all(&piece).await?;
                }
            }
        }
    }

    /// The stream of the next request that is there.
    fn next(&mut self) -> Option<u32> {
        loop {
            let skip = if self.greeted { 0 } else { PREFACE };
            let header: [u8; 9] = self.bytes.get(skip..skip + 9)?.try_into().ok()?;
            let [l0, l1, l2, kind, _, stream @ ..] = header;
            let end = skip + 9 + u32::from_be_bytes([0, l0, l1, l2]) as usize;
            if self.bytes.len() < end {
                return None;
            }
            self.bytes.drain(..end);
            self.greeted = true;
            if kind == HEADERS {
                return Some(u32::from_be_bytes(stream));
            }
        }
    }
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The headers of a good answer: `:status` 200 from the static table, then literals (RFC 7541, section 6).
fn headers() -> Vec<u8> {
    [vec![0x88], literal("content-type", b"application/grpc")].concat()
}

/// Trailers with OK and a load that nobody can have (A51).
fn lies() -> Vec<u8> {
    // `rps_fractional` and `application_utilization`: doubles, fields 6 and 9.
    let report = [&[0x31][..], &1e308_f64.to_le_bytes(), &[0x49], &f64::MIN_POSITIVE.to_le_bytes()].concat();
    let report = BinaryMetadataValue::from_bytes(&report);
    [literal("grpc-status", b"0"), literal("endpoint-load-metrics-bin", report.as_encoded_bytes())].concat()
}

fn literal(name: &str, value: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap_or_default();
    [&[0, length(name.as_bytes())], name.as_bytes(), &[length(value)], value].concat()
}

const MODES: [Mode; 8] =
    [Mode::Flood, Mode::HalfClose, Mode::Reset, Mode::Drip, Mode::Lie, Mode::GoAway, Mode::Silent, Mode::Garbage];

/// `PRI * HTTP/2.0` and what belongs to it.
const PREFACE: usize = 24;
/// How long a connection is worth it.
const ATTENTION: Duration = Duration::from_secs(5);

// Types and flags of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
