//! Follows the HTTP/2 frames that a peer sends, for what hyper keeps to itself: the first one, and a GOAWAY.

/// Where in the stream of frames we are.
#[derive(Debug)]
pub(crate) struct Frames {
    /// The header that is being read; of a GOAWAY also the payload up to the error code.
    head: [u8; GOAWAY_HEAD],
    seen: usize,
    /// Bytes until the next header.
    skip: usize,
    /// Whether there was a header before.
    begun: bool,
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

impl Frames {
    pub(crate) const fn new() -> Self {
        Self { head: [0; GOAWAY_HEAD], seen: 0, skip: 0, begun: false }
    }

    /// Takes in the next bytes.
    pub(crate) fn follow(&mut self, mut bytes: &[u8], mut tell: impl FnMut(Seen)) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            let wanted = if self.seen < HEADER { HEADER } else { GOAWAY_HEAD };
            let taken = (wanted - self.seen).min(bytes.len());
            self.head[self.seen..self.seen + taken].copy_from_slice(&bytes[..taken]);
            self.seen += taken;
            bytes = &bytes[taken..];
            if self.seen < wanted {
                return;
            }
            // Length 3 bytes, type 1, flags 1, stream id 4 (RFC 9113, section 4.1).
            let length = u32::from_be_bytes([0, self.head[0], self.head[1], self.head[2]]) as usize;
            if wanted == HEADER {
                if !std::mem::replace(&mut self.begun, true) {
                    tell(Seen::First { settings: self.head[3] == SETTINGS && self.head[5..HEADER] == [0; 4] });
                }
                if self.head[3] == HEADERS {
                    tell(Seen::Answer);
                }
                if self.head[3] == GOAWAY && length >= GOAWAY_HEAD - HEADER {
                    continue; // Read on up to the code.
                }
                self.skip = length;
            } else {
                tell(Seen::GoAway(u32::from_be_bytes([self.head[13], self.head[14], self.head[15], self.head[16]])));
                self.skip = length - (GOAWAY_HEAD - HEADER);
            }
            self.seen = 0;
        }
    }
}

const HEADER: usize = 9;
/// A header, the last stream id and the error code.
const GOAWAY_HEAD: usize = HEADER + 8;

// Types of frames.
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

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
            let (mut frames, mut seen) = (Frames::new(), Vec::new());
            bytes.chunks(size).for_each(|piece| frames.follow(piece, |what| seen.push(what)));
            assert_eq!(seen, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn what_is_no_http2_is_seen_at_once_and_a_short_goaway_is_passed_over() {
        let mut seen = Vec::new();
        Frames::new().follow(b"HTTP/1.1 400 Bad Request", |what| seen.push(what));
        assert_eq!(seen, [Seen::First { settings: false }]);
        let (mut frames, mut seen) = (Frames::new(), Vec::new());
        frames.follow(&[frame(4, 1, &[]), frame(7, 0, &[1, 2, 3]), frame(6, 0, &[0; 8])].concat(), |what| {
            seen.push(what)
        });
        assert_eq!(seen, [Seen::First { settings: false }]);
    }

    fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let header = [length[1], length[2], length[3], kind, 0, 0, 0, 0, stream];
        [&header, payload].concat()
    }
}
