//! Finds the messages in the data of an RPC, and their sizes.

/// Reads gRPC's framing: before each message a byte that says whether it is compressed, and four of its length.
#[derive(Debug, Default)]
pub(super) struct Messages {
    prefix: [u8; PREFIX],
    seen: usize,
    /// Bytes of the message that are to come.
    left: usize,
    /// Bytes of all messages so far, without framing.
    pub(super) bytes: u64,
    /// Messages so far.
    count: u64,
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// From 0.
    pub(super) number: u64,
    pub(super) size: usize,
    pub(super) compressed: bool,
}

impl Messages {
    /// Takes in the next data; tells of each message that ends in it.
    pub(super) fn follow(&mut self, mut data: &[u8], mut tell: impl FnMut(Message)) {
        loop {
            if self.seen < PREFIX {
                let taken = (PREFIX - self.seen).min(data.len());
                self.prefix[self.seen..self.seen + taken].copy_from_slice(&data[..taken]);
                self.seen += taken;
                data = &data[taken..];
                if self.seen < PREFIX {
                    return;
                }
                self.left = self.size();
            }
            let taken = self.left.min(data.len());
            self.left -= taken;
            self.bytes += taken as u64;
            data = &data[taken..];
            if self.left > 0 {
                return;
            }
            tell(Message { number: self.count, size: self.size(), compressed: self.prefix[0] != 0 });
            self.count += 1;
            self.seen = 0;
        }
    }

    fn size(&self) -> usize {
        u32::from_be_bytes([self.prefix[1], self.prefix[2], self.prefix[3], self.prefix[4]]) as usize
    }
}

const PREFIX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_however_the_data_is_cut() {
        let data = [&[0, 0, 0, 0, 3][..], b"abc", &[1, 0, 0, 0, 0], &[0, 0, 0, 1, 0], &[7; 256], &[0, 0]].concat();
        for size in [1, 4, 5, 6, 8, 9, 1000] {
            let (mut messages, mut found) = (Messages::default(), Vec::new());
            data.chunks(size).for_each(|piece| messages.follow(piece, |message| found.push(message)));
            let message = |number, size, compressed| Message { number, size, compressed };
            assert_eq!(found, [message(0, 3, false), message(1, 0, true), message(2, 256, false)], "S-82");
            assert_eq!(messages.bytes, 259, "A66: without framing");
        }
    }
}
