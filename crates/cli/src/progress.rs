//! A sign of life while something takes long.

use std::{
    fmt::Display,
    io::{self, IsTerminal as _, Write},
    pin::pin,
    time::Duration,
};

use tokio::time::Instant;

/// Waits for `work`, and after a while says on the terminal what is waited for.
pub(crate) async fn shown<T>(what: impl Display, work: impl Future<Output = T>) -> T {
    match io::stderr().is_terminal() {
        true => shown_on(&mut anstream::stderr(), what, work).await,
        false => work.await,
    }
}

async fn shown_on<T>(terminal: &mut impl Write, what: impl Display, work: impl Future<Output = T>) -> T {
    let (start, mut work) = (Instant::now(), pin!(work));
    let mut ticks = tokio::time::interval_at(start + PATIENCE, TICK);
    let mut drawn = false;
    loop {
        // It is decoration: a terminal that is gone must not end anything.
        tokio::select! {
            biased;
            done = &mut work => {
                if drawn {
                    let _ = write!(terminal, "\r\x1b[K").and_then(|()| terminal.flush());
                }
                return done;
            }
            _ = ticks.tick() => {
                let seconds = start.elapsed().as_secs();
                let _ = write!(terminal, "\r{what}, {seconds} s\x1b[K").and_then(|()| terminal.flush());
                drawn = true;
            }
        }
    }
}

/// What takes less needs no words.
const PATIENCE: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    async fn words(takes: Duration) -> String {
        let mut terminal = Vec::new();
        shown_on(&mut terminal, "waiting for x", tokio::time::sleep(takes)).await;
        String::from_utf8(terminal).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_longer_than_two_seconds_says_so_and_cleans_up() {
        assert_eq!(words(Duration::from_millis(1900)).await, "");
        let told = words(Duration::from_millis(3500)).await;
        assert_eq!(told, "\rwaiting for x, 2 s\x1b[K\rwaiting for x, 3 s\x1b[K\r\x1b[K");
    }
}
