//! What passes over a connection, seen where bytes meet the socket: which requests are on the wire, and what the peer
//! has said since.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::frames::{self, Cursor};
use crate::transport::Stream;

/// What is known of a connection. Shared by those who use it.
pub(super) struct Wire {
    heard: watch::Sender<Heard>,
    outgoing: Mutex<HashMap<u32, Outgoing>>,
}

/// What a peer has said so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    /// Pieces of frames that HTTP/2 stacks send by themselves: PING and its answer, SETTINGS, WINDOW_UPDATE, PRIORITY. They
    /// come from a server that hangs, too, and from a proxy in front of a dead one.
    pub(super) by_stack: u64,
    /// Pieces of all other frames.
    pub(super) data: u64,
    /// When it said the last of it.
    pub(super) at: Instant,
}

/// Comes when a message is on the wire, with what had been heard until then.
pub(super) type Receipt = oneshot::Receiver<Heard>;

/// The messages on a stream.
#[derive(Default)]
struct Outgoing {
    /// Bytes of DATA frames that are on the wire.
    written: u64,
    /// Bytes of all messages.
    total: u64,
    /// Where messages end, in order, and who wants to know when they are on the wire.
    ends: VecDeque<(u64, oneshot::Sender<Heard>)>,
}

/// The bytes of a connection, on their way to and from `stream`.
pub(super) struct Tap {
    stream: Box<dyn Stream>,
    wire: Arc<Wire>,
    incoming: Cursor,
    /// Bytes of the preface of HTTP/2 that are still to be written. Frames follow.
    preface: usize,
    outgoing: Cursor,
    /// Bytes of DATA frames, by stream, that are written and not flushed: TLS may hold them back.
    unflushed: Vec<(u32, usize)>,
}

// === impl Wire ===

impl Wire {
    pub(super) fn new() -> Arc<Self> {
        let heard = Heard { by_stack: 0, data: 0, at: Instant::now() };
        Arc::new(Self { heard: watch::Sender::new(heard), outgoing: Mutex::default() })
    }

    /// What was heard, now and from now on.
    pub(super) fn listen(&self) -> watch::Receiver<Heard> {
        self.heard.subscribe()
    }

    pub(super) fn heard(&self) -> Heard {
        *self.heard.borrow()
    }

    /// A message of so many bytes will be sent on a stream, after those before.
    pub(super) fn expect(&self, stream: u32, length: usize) -> Receipt {
        let (written, receipt) = oneshot::channel();
        let mut all = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        let outgoing = all.entry(stream).or_default();
        outgoing.total += length as u64;
        outgoing.ends.push_back((outgoing.total, written));
        receipt
    }

    /// Nothing more will be sent on a stream.
    pub(super) fn forget(&self, stream: u32) {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner).remove(&stream);
    }

    fn flushed(&self, pieces: impl Iterator<Item = (u32, usize)>) {
        let mut all = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        for (stream, length) in pieces {
            let Some(outgoing) = all.get_mut(&stream) else { continue };
            outgoing.written += length as u64;
            while outgoing.ends.front().is_some_and(|(end, _)| *end <= outgoing.written) {
                let (_, written) = outgoing.ends.pop_front().expect("there is a front");
                // The stream may have been given up.
                let _ = written.send(self.heard());
            }
        }
    }
}

// === impl Tap ===

impl Tap {
    pub(super) fn on(stream: Box<dyn Stream>, wire: Arc<Wire>) -> Self {
        Self {
            stream,
            wire,
            incoming: Cursor::default(),
            preface: PREFACE,
            outgoing: Cursor::default(),
            unflushed: Vec::new(),
        }
    }

    fn hear(&mut self, bytes: &[u8]) {
        let (mut by_stack, mut data) = (0, 0);
        self.incoming.follow(bytes, |frame, _| match frame.kind {
            frames::PING | frames::SETTINGS | frames::WINDOW_UPDATE | frames::PRIORITY => by_stack += 1,
            _ => data += 1,
        });
        self.wire.heard.send_modify(|heard| {
            heard.by_stack += by_stack;
            heard.data += data;
            heard.at = Instant::now();
        });
    }

    fn wrote(&mut self, bytes: &[u8]) {
        let preface = self.preface.min(bytes.len());
        self.preface -= preface;
        let Self { outgoing, unflushed, .. } = self;
        outgoing.follow(&bytes[preface..], |frame, payload| {
            if frame.kind == frames::DATA && !payload.is_empty() {
                unflushed.push((frame.stream, payload.len()));
            }
        });
    }
}

impl AsyncRead for Tap {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            self.hear(&buf.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tap {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let taken = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.wrote(&buf[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let taken = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bufs))?;
        let mut left = taken;
        for buf in bufs {
            let piece = left.min(buf.len());
            self.wrote(&buf[..piece]);
            left -= piece;
        }
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        let Self { wire, unflushed, .. } = &mut *self;
        wire.flushed(unflushed.drain(..));
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// `PRI * HTTP/2.0` and what belongs to it (RFC 9113, section 3.4).
const PREFACE: usize = 24;
