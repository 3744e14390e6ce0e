//! What the admin port tells about: a server, and where its resources come from.

use std::{sync::Arc, time::Instant};

use mainstay_control_plane::{FeedStatus, IntakeObserver, Server};
use mainstay_mirror::Mirror;

/// A control plane that is served.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) server: Arc<Server>,
    pub(super) intake: IntakeObserver,
    pub(super) mirror: Option<Arc<Mirror>>,
}

impl Subject {
    /// Whether there is something whole to serve, and clients are welcome.
    pub(super) fn is_ready(&self) -> bool {
        let is_mirrored = self.mirror.as_ref().is_none_or(|mirror| mirror.is_ready());
        self.intake.is_ready() && is_mirrored && self.server.is_listening()
    }
}

/// How a feed is doing, in words.
pub(super) fn words(feed: &FeedStatus) -> String {
    let seconds = |since: Instant| since.elapsed().as_secs();
    let mut words = match feed.brought {
        None => "nothing yet".to_owned(),
        Some(at) => format!("{} resources, {} s old", feed.resources, seconds(at)),
    };
    if let Some(since) = feed.behind {
        words.push_str(&format!(", behind for {} s", seconds(since)));
    }
    if let Some(problem) = &feed.problem {
        words.push_str(&format!(": {problem}"));
    }
    words
}
