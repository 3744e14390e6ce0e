//! One client of a swarm: what happens to it, and when.

use std::time::Instant;

use mainstay::{Channel, event::Event, view::ConfigView};
use tokio::sync::mpsc;

/// Something happened to a client.
#[derive(Debug)]
pub(super) struct News {
    pub(super) client: usize,
    pub(super) happened: Happened,
    pub(super) at: Instant,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happened {
    /// The first response on a stream came.
    Answered,
    /// A stream was open, and ended before any response: the server does not want it now.
    Refused,
    /// There was no connection.
    Unconnected,
    /// A stream that had answers ended.
    Lost,
    /// A resource was held for absent, because nobody sent it in time.
    Absent,
    /// There is a complete configuration, of resources with so many bytes.
    Configured { bytes: usize },
    /// There is an error in the place of a configuration.
    Failed,
}

/// Tells what happens to a client, for as long as somebody listens.
pub(super) async fn follow(client: usize, channel: Channel, tell: mpsc::UnboundedSender<News>) {
    let tell = |happened| tell.send(News { client, happened, at: Instant::now() }).is_ok();
    let (mut events, mut configs) = (channel.events(), channel.configs());
    let hearing = async {
        let mut is_open = false;
        while let Some(event) = events.next().await {
            if of_event(&event, &mut is_open).is_some_and(|happened| !tell(happened)) {
                return;
            }
        }
    };
    // A view costs something: there are many of us, and the first complete one is enough.
    let looking = async {
        while let Some(view) = configs.next().await {
            let happened = of_view(&view);
            happened.map(tell);
            if let Some(Happened::Configured { .. }) = happened {
                return;
            }
        }
    };
    tokio::join!(hearing, looking);
}

fn of_event(event: &Event, is_open: &mut bool) -> Option<Happened> {
    match event {
        Event::Connected { .. } => {
            *is_open = true;
            None
        }
        Event::Answered { .. } => Some(Happened::Answered),
        Event::Unreachable { .. } => {
            Some(if std::mem::take(is_open) { Happened::Refused } else { Happened::Unconnected })
        }
        Event::StreamEnded { .. } => {
            *is_open = false;
            Some(Happened::Lost)
        }
        Event::TimedOut { .. } => Some(Happened::Absent),
        _ => None,
    }
}

fn of_view(view: &ConfigView) -> Option<Happened> {
    match view.config.as_ref()? {
        Ok(config) if config.clusters.values().all(Result::is_ok) => {
            let bytes =
                view.resources.iter().filter_map(|resource| resource.value.as_ref()).map(|value| value.encoded.len());
            Some(Happened::Configured { bytes: bytes.sum() })
        }
        Ok(_) => None,
        Err(_) => Some(Happened::Failed),
    }
}
