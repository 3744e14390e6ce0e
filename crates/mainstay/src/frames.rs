//! Follows HTTP/2 frames, for what h2 keeps to itself.

/// Where in a stream of frames we are.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    header: [u8; HEADER],
    /// Bytes of the header that are there.
    seen: usize,
    /// Bytes of the payload that are still to come.
    left: usize,
}

/// A frame, by its header (RFC 9113, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) stream: u32,
    pub(crate) length: usize,
}

/// Looks for what is worth knowing among the frames of a peer.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    cursor: Cursor,
    /// Whether there was a frame before.
    begun: bool,
    /// The payload of a GOAWAY up to the error code.
    goaway: [u8; GOAWAY_HEAD],
    goaway_seen: usize,
}

/// Looks for the streams that begin among the frames that a client sends.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    cursor: Cursor,
    /// Bytes of the preface that are seen.
    preface: usize,
}

/// Something worth knowing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The first frame, and whether it is SETTINGS on stream 0, as it must be.
    First { settings: bool },
    /// The peer begins to answer a request, or to end its answer.
    Answer,
    /// The peer takes no new requests, with an error code (RFC 9113, section 7).
    GoAway(u32),
}

// === impl Cursor ===

impl Cursor {
    /// Takes in the next bytes. `tell` hears of each frame when its header is complete, without payload, and of each
    /// piece of its payload.
    pub(crate) fn follow(&mut self, mut bytes: &[u8], mut tell: impl FnMut(Frame, &[u8])) {
        while !bytes.is_empty() {
            if self.seen == 0
                && let Some((header, rest)) = bytes.split_first_chunk()
            {
                // As a whole, as nearly always.
                (self.header, self.seen, bytes) = (*header, HEADER, rest);
                self.left = self.frame().length;
                tell(self.frame(), &[]);
            } else if self.seen < HEADER {
                let taken = (HEADER - self.seen).min(bytes.len());
                self.header[self.seen..self.seen + taken].copy_from_slice(&bytes[..taken]);
                self.seen += taken;
                bytes = &bytes[taken..];
                if self.seen < HEADER {
                    return;
                }
                self.left = self.frame().length;
                tell(self.frame(), &[]);
            } else {
                let (payload, rest) = bytes.split_at(self.left.min(bytes.len()));
                self.left -= payload.len();
                bytes = rest;
                tell(self.frame(), payload);
            }
            if self.left == 0 {
                self.seen = 0;
            }
        }
    }

    /// Length 3 bytes, type 1, flags 1, stream id 4, of which the first bit means nothing.
    fn frame(&self) -> Frame {
        let [l0, l1, l2, kind, _, stream @ ..] = self.header;
        Frame {
            kind,
            stream: u32::from_be_bytes(stream) & (u32::MAX >> 1),
            length: u32::from_be_bytes([0, l0, l1, l2]) as usize,
        }
    }
}

// === impl Frames ===

impl Frames {
    /// Takes in the next bytes.
    pub(crate) fn follow(&mut self, bytes: &[u8], mut tell: impl FnMut(Seen)) {
        let Self { cursor, begun, goaway, goaway_seen } = self;
        cursor.follow(bytes, |frame, payload| {
            if !std::mem::replace(begun, true) {
                tell(Seen::First { settings: frame.kind == SETTINGS && frame.stream == 0 });
            }
            if frame.kind == HEADERS && payload.is_empty() {
                tell(Seen::Answer);
            }
            if frame.kind != GOAWAY {
                return;
            }
            if payload.is_empty() {
                *goaway_seen = 0;
            }
            let taken = (GOAWAY_HEAD - *goaway_seen).min(payload.len());
            goaway[*goaway_seen..*goaway_seen + taken].copy_from_slice(&payload[..taken]);
            *goaway_seen += taken;
            if taken > 0 && *goaway_seen == GOAWAY_HEAD {
                tell(Seen::GoAway(u32::from_be_bytes([goaway[4], goaway[5], goaway[6], goaway[7]])));
            }
        });
    }
}

// === impl Sent ===

impl Sent {
    /// Takes in the next bytes. `tell` hears of each stream whose headers, or trailers, begin.
    pub(crate) fn follow(&mut self, mut bytes: &[u8], mut tell: impl FnMut(u32)) {
        if self.preface < PREFACE {
            let taken = (PREFACE - self.preface).min(bytes.len());
            self.preface += taken;
            bytes = &bytes[taken..];
        }
        self.cursor.follow(bytes, |frame, payload| {
            if frame.kind == HEADERS && payload.is_empty() {
                tell(frame.stream);
            }
        });
    }
}

const HEADER: usize = 9;
/// `PRI * HTTP/2.0` and so on (RFC 9113, section 3.4).
const PREFACE: usize = 24;
/// The last stream id and the error code.
const GOAWAY_HEAD: usize = 8;

// Types of frames.
pub(crate) const DATA: u8 = 0;
const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_frame_and_a_goaway_are_seen_however_the_bytes_are_cut() {
        let mut bytes = frame(4, 0, &[0; 6]);
        bytes.extend(frame(1, 1, &[7; 20]));
        bytes.extend(frame(0, 1, &[7; 300]));
        bytes.extend(frame(7, 0, &[0, 0, 0, 1, 0, 0, 0, 11, b'c', b'a', b'l', b'm']));
        bytes.extend(frame(7, 0, &[0; 8]));
        let expected = [Seen::First { settings: true }, Seen::Answer, Seen::GoAway(11), Seen::GoAway(0)];
        for size in [1, 2, 9, 16, 17, 18, 1000] {
            let (mut frames, mut seen) = (Frames::default(), Vec::new());
            bytes.chunks(size).for_each(|piece| frames.follow(piece, |what| seen.push(what)));
            assert_eq!(seen, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn what_is_no_http2_is_seen_at_once_and_a_short_goaway_is_passed_over() {
        let mut seen = Vec::new();
        Frames::default().follow(b"HTTP/1.1 400 Bad Request", |what| seen.push(what));
        assert_eq!(seen, [Seen::First { settings: false }]);
        let (mut frames, mut seen) = (Frames::default(), Vec::new());
        frames.follow(&[frame(4, 1, &[]), frame(7, 0, &[1, 2, 3]), frame(6, 0, &[0; 8])].concat(), |what| {
            seen.push(what)
        });
        assert_eq!(seen, [Seen::First { settings: false }]);
    }

    #[test]
    fn streams_that_begin_are_seen_however_the_bytes_are_cut() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(4, 0, &[0; 6]));
        bytes.extend(frame(1, 1, &[7; 20]));
        bytes.extend(frame(0, 1, &[1; 300]));
        bytes.extend(frame(1, 3, &[]));
        for size in [1, 2, 9, 23, 24, 25, 1000] {
            let (mut sent, mut seen) = (Sent::default(), Vec::new());
            bytes.chunks(size).for_each(|piece| sent.follow(piece, |stream| seen.push(stream)));
            assert_eq!(seen, [1, 3], "in pieces of {size}");
        }
    }

    fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let header = [length[1], length[2], length[3], kind, 0, 0, 0, 0, stream];
        [&header, payload].concat()
    }
}
