//! HTTP/2 by hand, for requests that no client library makes.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::in_time;

/// A connection on which frames are written by hand.
pub(crate) struct RawHttp2<T> {
    stream: T,
}

/// A frame, with as much of it as tests look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

impl RawHttp2<TcpStream> {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap()).await
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> RawHttp2<T> {
    pub(crate) async fn over(mut stream: T) -> Self {
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut raw = Self { stream };
        raw.write(SETTINGS, 0, 0, &[]).await;
        raw
    }

    /// Sends a request with exactly these headers, and no body.
    pub(crate) async fn request(&mut self, stream: u32, headers: &[(&str, &str)]) {
        self.write(HEADERS, END_STREAM | END_HEADERS, stream, &block(headers)).await;
    }

    /// Begins a request whose body is to come.
    pub(crate) async fn begin(&mut self, stream: u32, headers: &[(&str, &str)]) {
        self.write(HEADERS, END_HEADERS, stream, &block(headers)).await;
    }

    /// Begins so many requests, and takes each of them back at once, all in one write.
    pub(crate) async fn begin_and_reset(&mut self, requests: u32, headers: &[(&str, &str)]) {
        let block = block(headers);
        let cancel = 8_u32.to_be_bytes();
        let frames = (0..requests).flat_map(|number| {
            let stream = 2 * number + 1;
            [frame(HEADERS, END_HEADERS, stream, &block), frame(RST_STREAM, 0, stream, &cancel)].concat()
        });
        // The server may have closed the connection before it has read all of them.
        let _ = self.stream.write_all(&frames.collect::<Vec<u8>>()).await;
    }

    /// The next frame that is neither about settings nor windows; pings are answered. `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        loop {
            let frame = in_time(self.read()).await?;
            match frame.kind {
                SETTINGS if frame.flags & ACK == 0 => self.write(SETTINGS, ACK, 0, &[]).await,
                PING if frame.flags & ACK == 0 => self.write(PING, ACK, 0, &frame.payload).await,
                SETTINGS | PING | 8 => {}
                _ => return Some(frame),
            }
        }
    }

    /// A setting of the server, which it sends first.
    pub(crate) async fn setting(&mut self, wanted: u16) -> Option<u32> {
        let frame = in_time(self.read()).await.expect("settings");
        assert_eq!((frame.kind, frame.flags & ACK), (SETTINGS, 0));
        let mut settings = frame.payload.chunks_exact(6);
        let found = settings.find(|setting| u16::from_be_bytes([setting[0], setting[1]]) == wanted)?;
        Some(u32::from_be_bytes([found[2], found[3], found[4], found[5]]))
    }

    async fn read(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.stream.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        // The server may be gone: then the next read says so.
        let _ = self.stream.write_all(&frame(kind, flags, stream, payload)).await;
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Literals that are not to be indexed, without Huffman's code: each length is one byte below 127.
fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let block = headers.iter().flat_map(|(name, value)| {
        let part = |text: &str| [vec![u8::try_from(text.len()).unwrap()], text.as_bytes().to_vec()].concat();
        [vec![0], part(name), part(value)].concat()
    });
    block.collect()
}
