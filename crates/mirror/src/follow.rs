//! Follows one target at the primary, as one of the clients would (FB-16).

use std::time::{Duration, Instant, SystemTime};

use mainstay::Channel;
use mainstay::bootstrap::Bootstrap;
use mainstay::view::{ConfigView, RecordedResource, Recording, ServerState};
use mainstay_xds::local::Stored;
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::ResourceType;
use tokio::sync::mpsc;

use crate::files::since_1970;
use crate::set::Set;

/// What is new of a target.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) target: String,
    /// The configuration, if it is complete and the newest.
    pub(crate) complete: Option<Set>,
    /// Why it is not.
    pub(crate) problem: Option<String>,
    /// Why the primary does not answer, if it does not.
    pub(crate) unreachable: Option<String>,
    pub(crate) is_current: bool,
}

/// Makes a channel that connects to no endpoint.
pub(crate) fn channel(target: &str, bootstrap: &Bootstrap) -> Result<Channel, String> {
    Channel::builder(target).bootstrap(bootstrap.clone()).without_endpoints().build().map_err(|error| error.to_string())
}

/// Tells what is new, until nobody listens.
pub(crate) async fn follow(target: String, channel: Channel, news: mpsc::Sender<News>) {
    let mut configs = channel.configs();
    let mut is_whole = false;
    loop {
        let view = match tokio::time::timeout(RETRY, configs.next()).await {
            Ok(Some(view)) => view,
            Ok(None) => return,
            // It becomes whole without a word if what was waited for turns out to be the same.
            Err(_) if !is_whole => match channel.config().await {
                Some(view) => view,
                None => return,
            },
            Err(_) => continue,
        };
        is_whole = view.recording.is_some();
        if news.send(read(&target, &view)).await.is_err() {
            return;
        }
    }
}

fn read(target: &str, view: &ConfigView) -> News {
    let problem = match (&view.recording, &view.config) {
        (Some(_), _) => None,
        (None, Some(Err(error))) => Some(error.to_string()),
        (None, Some(Ok(_)) | None) => {
            let error = view.resources.iter().find_map(|resource| resource.error.as_ref());
            Some(error.map_or_else(|| "not everything has come".to_owned(), ToString::to_string))
        }
    };
    let down = view.servers.iter().find(|server| server.state != ServerState::Ready || server.last_error.is_some());
    let unreachable = match (down, view.servers.is_empty()) {
        (Some(server), _) => Some(server.last_error.clone().unwrap_or_else(|| "not connected yet".to_owned())),
        (None, true) => Some("not connected yet".to_owned()),
        (None, false) => None,
    };
    News {
        target: target.to_owned(),
        complete: view.recording.as_ref().map(set_of),
        problem,
        is_current: view.recording.as_ref().is_some_and(|recording| recording.is_current),
        unreachable,
    }
}

/// What a recording holds, with times that survive the process.
pub(crate) fn set_of(recording: &Recording) -> Set {
    let (now, here) = (since_1970(SystemTime::now()), Instant::now());
    let stored = |recorded: &RecordedResource| {
        let resource_type = ResourceType::from_type_url(recorded.resource.resource_type.type_url())?;
        let key = ResourceKey { resource_type, name: recorded.resource.name.as_str().into() };
        let stored = Stored {
            resource: key.clone(),
            version: recorded.value.version.as_str().into(),
            value: recorded.value.encoded.clone(),
            source: recorded.value.server.as_str().into(),
            received_at: now.saturating_sub(here.saturating_duration_since(recorded.value.received_at)),
        };
        Some((key, stored))
    };
    recording.resources.iter().filter_map(stored).collect()
}

/// The next look after one that found nothing whole.
const RETRY: Duration = Duration::from_secs(1);
