//! What stands in for the network and for processors.

use std::time::Duration;

/// What things cost where nothing real runs. The defaults are those of `scale`'s table, for a replica with two cores on a gigabit
/// link; [`Model::slowed`] makes a weaker one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// From a client to a control plane and back.
    pub round_trip: Duration,
    /// What a new connection costs a control plane.
    pub accept: Duration,
    /// What a request or a response costs it.
    pub message: Duration,
    /// How many things it does at once.
    pub workers: usize,
    /// Bytes per second that leave it.
    pub bandwidth: u64,
    /// Connections that may wait to be accepted; whoever comes then is not answered and tries again.
    pub backlog: usize,
    /// How long a connection is quiet before it is asked whether anybody is there, and how long that may take.
    pub keep_alive: (Duration, Duration),
}

impl Default for Model {
    fn default() -> Self {
        Self {
            round_trip: Duration::from_millis(1),
            accept: Duration::from_micros(60),
            message: Duration::from_micros(10),
            workers: 2,
            bandwidth: 125_000_000,
            backlog: 4096,
            keep_alive: (Duration::from_secs(300), Duration::from_secs(20)),
        }
    }
}

impl Model {
    /// The same with a processor that needs so many times as long.
    #[must_use]
    pub fn slowed(mut self, times: u32) -> Self {
        self.accept *= times;
        self.message *= times;
        self
    }

    /// One way.
    pub(crate) fn way(&self) -> Duration {
        self.round_trip / 2
    }

    /// How long bytes are on the link.
    pub(crate) fn transmission(&self, bytes: usize) -> Duration {
        let nanos = (bytes as u128 * 1_000_000_000) / u128::from(self.bandwidth.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// When the SYN of a connection that nobody answered is sent again, after the first.
pub(crate) const SYN_RETRIES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
