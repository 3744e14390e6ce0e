//! Keys, as they are pressed, and the terminal that is made for it and put back.

use std::io::{self, IsTerminal as _, Read as _, Write as _};

use tokio::sync::mpsc;

/// What somebody presses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
}

/// A terminal that is drawn upon, until this is dropped.
pub(super) struct Terminal {
    #[cfg(unix)]
    before: Option<rustix::termios::Termios>,
}

impl Terminal {
    /// Keys come one by one from now on, and what was on the screen returns afterwards. Signals stay what they are.
    pub(super) fn begin() -> Self {
        print(ENTER);
        Self {
            #[cfg(unix)]
            before: unbuffered(),
        }
    }

    /// How large it is, in columns and lines.
    pub(super) fn size() -> (usize, usize) {
        let size = terminal_size::terminal_size_of(io::stdout());
        size.map_or((80, 24), |(width, height)| (width.0.into(), height.0.into()))
    }

    /// Draws these lines in place of what is there.
    pub(super) fn draw(&mut self, lines: &[String]) {
        let has_colours = anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never;
        let line = |line: &String| match has_colours {
            true => line.clone(),
            false => anstream::adapter::strip_str(line).to_string(),
        };
        let lines: Vec<_> = lines.iter().map(|text| format!("{}{TO_END_OF_LINE}", line(text))).collect();
        print(&format!("{HOME}{}{TO_END}", lines.join("\r\n")));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some(before) = &self.before {
            // There is nobody to tell if the terminal has gone.
            let _ = rustix::termios::tcsetattr(io::stdin(), rustix::termios::OptionalActions::Now, before);
        }
        print(LEAVE);
    }
}

/// How the terminal was before keys came one by one; nothing if that cannot be had, and then they come with Enter.
#[cfg(unix)]
fn unbuffered() -> Option<rustix::termios::Termios> {
    use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
    let before = tcgetattr(io::stdin()).ok()?;
    let mut now = before.clone();
    now.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
    tcsetattr(io::stdin(), OptionalActions::Now, &now).ok()?;
    Some(before)
}

/// The terminal may have gone, which ends the process by a signal or by its next look.
fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The keys that are pressed. The thread ends with the process, or with its input.
pub(super) fn pressed() -> mpsc::UnboundedReceiver<Key> {
    let (sender, receiver) = mpsc::unbounded_channel();
    // Where nobody can press anything, none ever comes.
    if io::stdin().is_terminal() {
        std::thread::spawn(move || {
            let mut bytes = [0; 64];
            while let Ok(length @ 1..) = io::stdin().lock().read(&mut bytes) {
                if keys(&bytes[..length]).into_iter().any(|key| sender.send(key).is_err()) {
                    return;
                }
            }
        });
    }
    receiver
}

/// What was pressed, of what a terminal sends at once.
fn keys(bytes: &[u8]) -> Vec<Key> {
    let text = String::from_utf8_lossy(bytes);
    let (mut rest, mut keys) = (&*text, Vec::new());
    while let Some(letter) = rest.chars().next() {
        let sequences = [("\x1b[A", Key::Up), ("\x1bOA", Key::Up), ("\x1b[B", Key::Down), ("\x1bOB", Key::Down)];
        if let Some((sequence, key)) = sequences.into_iter().find(|(sequence, _)| rest.starts_with(sequence)) {
            keys.push(key);
            rest = &rest[sequence.len()..];
            continue;
        }
        rest = &rest[letter.len_utf8()..];
        keys.push(match letter {
            '\r' | '\n' => Key::Enter,
            '\x7f' | '\x08' => Key::Backspace,
            // Any other key that sends more than a letter does nothing.
            '\x1b' if rest.starts_with(['[', 'O']) => {
                rest = rest[1..].trim_start_matches(|part: char| !part.is_ascii_alphabetic() && part != '~');
                let mut letters = rest.chars();
                letters.next();
                rest = letters.as_str();
                continue;
            }
            '\x1b' => Key::Escape,
            other if other.is_control() => continue,
            other => Key::Char(other),
        });
    }
    keys
}

/// The other screen, without a cursor, on which lines are cut where it ends.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const TO_END_OF_LINE: &str = "\x1b[K";
const TO_END: &str = "\x1b[J";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        assert_eq!(keys(b"q/\r"), [Key::Char('q'), Key::Char('/'), Key::Enter]);
        assert_eq!(keys(b"\x1b"), [Key::Escape]);
        assert_eq!(keys(b"\x1b[A\x1b[Bx\x7f"), [Key::Up, Key::Down, Key::Char('x'), Key::Backspace]);
        assert_eq!(keys(b"\x1b[3~\x1b[1;5Cs\t"), [Key::Char('s')], "what is not known does nothing");
        assert_eq!(keys("ä".as_bytes()), [Key::Char('ä')]);
    }
}
