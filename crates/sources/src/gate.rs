//! Who tells the control plane whether new streams may come in, and everybody else how fresh a replica is (FB-27).
//!
//! A new stream is let in when the engine has said since the stream was opened that what is served is current. So a client
//! that comes from another replica never finds something older than it had: what it had was current before. The engine is asked
//! once for all streams that wait.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mainstay_control_plane::ControlPlane;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::freshness::Standing;

/// How a replica stands with its engine; clones tell the same.
#[derive(Clone, Debug)]
pub struct Health {
    seen: watch::Receiver<Seen>,
    asked: Arc<Notify>,
    started: Instant,
}

/// What a source last said about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What is done with new streams.
    pub standing: Standing,
    /// When what is served was last known to be what the engine has, since the start.
    pub confirmed: Option<Duration>,
    /// How often what a watch had told turned out to be different from what the engine has; 0 in good health.
    pub differences: u64,
    /// Why it cannot be sure, if it cannot.
    pub trouble: Option<String>,
}

impl Default for Seen {
    fn default() -> Self {
        Self { standing: Standing::Empty, confirmed: None, differences: 0, trouble: None }
    }
}

/// The end of a [`Health`] that the source has.
#[derive(Debug)]
pub(crate) struct Teller {
    pub(crate) seen: watch::Sender<Seen>,
    asked: Arc<Notify>,
    pub(crate) started: Instant,
}

impl Teller {
    pub(crate) fn new() -> Self {
        Self { seen: watch::Sender::default(), asked: Arc::default(), started: Instant::now() }
    }

    pub(crate) fn health(&self) -> Health {
        Health { seen: self.seen.subscribe(), asked: Arc::clone(&self.asked), started: self.started }
    }

    /// The time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn tell(&self, seen: Seen) {
        self.seen.send_if_modified(|told| {
            let is_news = *told != seen;
            *told = seen;
            is_news
        });
    }

    /// Waits until somebody wants to know whether what is served is current.
    pub(crate) async fn asked(&self) {
        self.asked.notified().await;
    }
}

impl Health {
    /// How it stands now.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Waits until that changes, and says how it stands then.
    pub async fn changed(&mut self) -> Seen {
        if self.seen.changed().await.is_err() {
            // The source has ended: nothing changes any more.
            std::future::pending::<()>().await;
        }
        self.seen.borrow_and_update().clone()
    }

    /// Has the control plane ask before it lets a stream in.
    pub fn guard(&self, control_plane: &ControlPlane) {
        let health = self.clone();
        control_plane.guard(move || {
            let health = health.clone();
            async move { health.admit().await.map_err(|refusal| refusal.to_string()) }
        });
    }

    /// Waits until a stream that is opened now may come in.
    ///
    /// # Errors
    /// If it may not, with the reason.
    pub async fn admit(mut self) -> Result<(), Refusal> {
        let opened = self.started.elapsed();
        let deadline = tokio::time::sleep(PATIENCE);
        tokio::pin!(deadline);
        self.asked.notify_one();
        loop {
            let Seen { standing, confirmed, trouble, .. } = self.seen.borrow_and_update().clone();
            match standing {
                Standing::Stale => return Ok(()),
                Standing::Fresh if confirmed >= Some(opened) => return Ok(()),
                Standing::Fresh => {}
                Standing::Empty | Standing::Behind => return Err(Refusal { standing, trouble }),
            }
            tokio::select! {
                () = &mut deadline => return Err(Refusal { standing, trouble }),
                changed = self.seen.changed() => if changed.is_err() {
                    return Err(Refusal { standing, trouble });
                },
            }
        }
    }
}

/// Why a stream is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    standing: Standing,
    trouble: Option<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.standing {
            Standing::Empty => write!(f, "this replica has nothing to serve yet")?,
            Standing::Fresh | Standing::Behind | Standing::Stale => {
                write!(f, "this replica cannot tell whether what it has is current")?;
            }
        }
        match &self.trouble {
            Some(trouble) => write!(f, ": {trouble}"),
            None => Ok(()),
        }
    }
}

/// How long a stream may wait for the word of the engine: long enough for most elections, and far from the 15 s after which
/// clients believe that nothing is there (P-55).
const PATIENCE: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stream_waits_for_a_word_that_is_younger_than_it_fb27() {
        let teller = Teller::new();
        teller.tell(fresh(Duration::ZERO));
        tokio::time::advance(Duration::from_secs(1)).await;
        let admitted = tokio::spawn(teller.health().admit());
        teller.asked().await;
        assert!(!admitted.is_finished());
        teller.tell(fresh(teller.now()));
        assert_eq!(admitted.await.expect("no panic"), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_refused_after_3_s_or_at_once_when_behind_fb27() {
        let teller = Teller::new();
        teller.tell(fresh(Duration::ZERO));
        tokio::time::advance(Duration::from_secs(1)).await;
        let begun = Instant::now();
        assert!(teller.health().admit().await.is_err());
        assert_eq!(begun.elapsed(), PATIENCE);
        for standing in [Standing::Empty, Standing::Behind] {
            teller.tell(Seen { standing, trouble: Some("no leader".to_owned()), ..Seen::default() });
            let begun = Instant::now();
            let refusal = teller.health().admit().await.expect_err("refused");
            assert!(refusal.to_string().ends_with(": no leader"), "{refusal}");
            assert_eq!(begun.elapsed(), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stale_is_served_fb27() {
        let teller = Teller::new();
        teller.tell(Seen { standing: Standing::Stale, ..Seen::default() });
        assert_eq!(teller.health().admit().await, Ok(()));
    }

    fn fresh(at: Duration) -> Seen {
        Seen { standing: Standing::Fresh, confirmed: Some(at), ..Seen::default() }
    }
}
