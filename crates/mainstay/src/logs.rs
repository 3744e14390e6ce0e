//! What is logged of a channel or of servers, in words: what needs a person is `warn`, what explains a change is `info`, the
//! rest is `debug`. The end of a trouble is told at the level at which it began, so that whoever reads one reads the other.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mainstay_lb::{Connectivity, DetectionMethod, Observation, Origin, SubchannelId};
use mainstay_xds::client::{Level, Report};
use tokio::time::Instant;

use crate::connection::News;
use crate::disconnect::Disconnect;

/// Logs what an xDS client reports. What is said again and again is said once (OP-29).
#[derive(Debug, Default)]
pub(crate) struct ReportLog {
    /// Servers that cannot be reached, by URI, and why.
    unreachable: BTreeMap<String, String>,
    /// Texts of NACKs, by server and type, until a response of the type is accepted.
    nacks: BTreeMap<(String, String), String>,
}

/// Logs what becomes of the endpoints of a channel.
#[derive(Debug)]
pub(crate) struct EndpointLog {
    target: Arc<str>,
    /// Those that were said to be lost, and how loudly.
    down: BTreeMap<SubchannelId, Level>,
    limit: Limit,
    /// What was said since somebody asked, with whether it is a warning.
    said: Vec<(bool, String)>,
}

/// Something to say.
#[derive(Debug, PartialEq, Eq)]
struct Words {
    level: Level,
    text: String,
}

/// So many lines at once and then one in a while: a whole zone that goes away must not fill the disk.
#[derive(Debug)]
struct Limit {
    /// How many lines may be written now.
    room: u32,
    /// When there was last room for one more.
    filled: Instant,
    /// How many lines were not written.
    left_out: u32,
}

// === impl ReportLog ===

impl ReportLog {
    /// Logs a report.
    pub(crate) fn note(&mut self, target: &str, report: &Report) {
        write(target, "xDS", &self.words(report));
    }

    fn words(&mut self, report: &Report) -> Words {
        let (level, mut text) = (report.level(), report.to_string());
        let again =
            |before: Option<String>, now: &String| if before.as_ref() == Some(now) { Level::Debug } else { level };
        let level = match report {
            Report::Unreachable(server, cause, _) => {
                again(self.unreachable.insert(server.server_uri.to_string(), cause.clone()), cause)
            }
            Report::Answered(server) if self.unreachable.remove(&*server.server_uri).is_some() => {
                text += ", which was unreachable";
                Level::Warn
            }
            Report::Alive(server) if self.unreachable.remove(&*server.server_uri).is_some() => Level::Warn,
            Report::Nacked(server, resource_type, _, _, error) => again(
                self.nacks.insert((server.server_uri.to_string(), resource_type.to_string()), error.clone()),
                error,
            ),
            Report::Acked(server, resource_type, ..)
                if self.nacks.remove(&(server.server_uri.to_string(), resource_type.to_string())).is_some() =>
            {
                text += ", after one that was rejected";
                Level::Warn
            }
            Report::Connecting(_)
            | Report::Connected(..)
            | Report::Answered(_)
            | Report::Alive(_)
            | Report::StreamEnded(..)
            | Report::DeltaRefused(..)
            | Report::FellBack(..)
            | Report::Recovered(..)
            | Report::Acked(..)
            | Report::TimedOut(..)
            | Report::Ignored(..)
            | Report::DeletionIgnored(..)
            | Report::DeletionOver(..)
            | Report::SecurityIgnored(_) => level,
        };
        Words { level, text }
    }
}

// === impl EndpointLog ===

impl EndpointLog {
    pub(crate) fn new(target: &str, now: Instant) -> Self {
        let limit = Limit { room: BURST, filled: now, left_out: 0 };
        Self { target: target.into(), down: BTreeMap::new(), limit, said: Vec::new() }
    }

    /// Logs what happened to a connection.
    pub(crate) fn connection(&mut self, news: &News, address: SocketAddr, origin: &Origin, now: Instant) {
        if let Some(words) = self.words_of(news, address, origin) {
            self.say(now, words);
        }
    }

    /// Logs what a policy did.
    pub(crate) fn observation(&mut self, observation: &Observation, now: Instant) {
        if let Some(words) = of_policy(observation) {
            self.say(now, words);
        }
    }

    /// What was logged since the last time, with whether it is a warning: for the trace of the channel in channelz.
    pub(crate) fn take(&mut self) -> Vec<(bool, String)> {
        std::mem::take(&mut self.said)
    }

    /// Nothing more will be heard of a subchannel.
    pub(crate) fn forget(&mut self, id: SubchannelId) {
        self.down.remove(&id);
    }

    fn words_of(&mut self, news: &News, address: SocketAddr, origin: &Origin) -> Option<Words> {
        let endpoint = format!("endpoint {address} of cluster {:?}", origin.cluster);
        match (&news.state, news.cause.lost) {
            (Connectivity::Ready, _) => {
                let level = self.down.remove(&news.id)?;
                Some(Words { level, text: format!("{endpoint} is connected again") })
            }
            // Until it is back, its other failures are no news.
            _ if self.down.contains_key(&news.id) => None,
            (Connectivity::TransientFailure(cause), _) => {
                self.down.insert(news.id, Level::Warn);
                Some(Words { level: Level::Warn, text: format!("{endpoint} is down: {cause}") })
            }
            (Connectivity::Idle | Connectivity::Connecting, Some(lost)) => {
                // One that says goodbye is being restarted or drained.
                let level = if matches!(lost, Disconnect::GoAway(0) | Disconnect::Shutdown) {
                    Level::Info
                } else {
                    Level::Warn
                };
                self.down.insert(news.id, level);
                Some(Words { level, text: format!("{endpoint} is lost: {lost}") })
            }
            (Connectivity::Idle | Connectivity::Connecting, None) => None,
        }
    }

    fn say(&mut self, now: Instant, words: Words) {
        let Some(left_out) = self.limit.admit(now) else { return };
        if let Some(left_out) = left_out {
            let text = format!("{left_out} changes of endpoints before this one were not logged");
            write(&self.target, "endpoints", &Words { level: words.level, text });
        }
        write(&self.target, "endpoints", &words);
        self.said.push((words.level == Level::Warn, words.text));
    }
}

/// What policies do, in words. What only metrics want to know has none.
fn of_policy(observation: &Observation) -> Option<Words> {
    let text = match observation {
        Observation::Ejection { cluster, addresses, ejected } => {
            let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            let what = if *ejected { "is ejected for its failures" } else { "is back in use after its ejection" };
            format!("endpoint {} of cluster {cluster:?} {what}", addresses.join(", "))
        }
        Observation::Outlier { cluster, method, unenforced: Some(_) } => {
            let method = match method {
                DetectionMethod::SuccessRate => "success rate",
                DetectionMethod::FailurePercentage => "failures",
            };
            let text = format!("an endpoint of cluster {cluster:?} is an outlier by its {method}, and stays in use");
            return Some(Words { level: Level::Info, text });
        }
        Observation::Priority { cluster, from, to, of } => {
            format!("cluster {cluster:?} uses priority {to} of 0 to {}, after {from}", of.saturating_sub(1))
        }
        Observation::Leaf { cluster, to, from, of } => {
            let (to, from) = (to + 1, from + 1);
            format!("leaf cluster {cluster:?}, number {to} of {of} of its aggregate, is used after number {from}")
        }
        Observation::Outlier { unenforced: None, .. }
        | Observation::SecurityIgnored { .. }
        | Observation::Weights { .. } => return None,
    };
    Some(Words { level: Level::Warn, text })
}

impl fmt::Display for Disconnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GoAway(0) => f.write_str("it said goodbye"),
            Self::GoAway(code) => write!(f, "it ended the connection with HTTP/2 error {code}"),
            Self::Shutdown => f.write_str("it is not needed any more"),
            Self::Reset => f.write_str("the connection was reset"),
            Self::TimedOut => f.write_str("it gave no sign of life"),
            Self::Aborted => f.write_str("the connection was aborted"),
            Self::Socket => f.write_str("the connection broke"),
            Self::Unknown => f.write_str("it closed the connection"),
        }
    }
}

// === impl Limit ===

impl Limit {
    /// Whether a line may be written; if so, how many were not since the last one, if any.
    fn admit(&mut self, now: Instant) -> Option<Option<u32>> {
        let more = now.duration_since(self.filled).as_nanos() / REFILL.as_nanos();
        if more > 0 {
            self.room = BURST.min(self.room.saturating_add(u32::try_from(more).unwrap_or(BURST)));
            self.filled = now;
        }
        match self.room.checked_sub(1) {
            Some(room) => {
                self.room = room;
                Some(Some(std::mem::take(&mut self.left_out)).filter(|left_out| *left_out > 0))
            }
            None => {
                self.left_out += 1;
                None
            }
        }
    }
}

fn write(target: &str, what: &str, Words { level, text }: &Words) {
    match level {
        Level::Warn => tracing::warn!(target, "{what}: {text}"),
        Level::Info => tracing::info!(target, "{what}: {text}"),
        Level::Debug => tracing::debug!(target, "{what}: {text}"),
    }
}

/// Lines about endpoints that may come at once.
const BURST: u32 = 20;
/// How long one more line takes to be due.
const REFILL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use mainstay_xds::bootstrap::ServerConfig;
    use mainstay_xds::client::Received;
    use mainstay_xds::resource::ResourceType;

    use super::*;

    fn news(state: Connectivity, lost: Option<Disconnect>) -> News {
        News { id: SubchannelId(1), state, cause: crate::disconnect::Cause { lost, handshake: None } }
    }

    fn log() -> EndpointLog {
        EndpointLog::new("xds:///t", Instant::now())
    }

    fn words(log: &mut EndpointLog, state: Connectivity, lost: Option<Disconnect>) -> Option<(Level, String)> {
        let origin = Origin { cluster: "c".into(), ..Origin::default() };
        let address = "127.0.0.1:1".parse().unwrap();
        log.words_of(&news(state, lost), address, &origin).map(|words| (words.level, words.text))
    }

    #[test]
    fn an_endpoint_is_lost_once_and_back_at_the_same_level() {
        let mut log = log();
        assert_eq!(words(&mut log, Connectivity::Ready, None), None, "nothing was wrong before");
        let lost = |text: &str| format!("endpoint 127.0.0.1:1 of cluster \"c\" {text}");
        for (disconnect, level, text) in [
            (Disconnect::Reset, Level::Warn, "is lost: the connection was reset"),
            (Disconnect::GoAway(0), Level::Info, "is lost: it said goodbye"),
            (Disconnect::GoAway(11), Level::Warn, "is lost: it ended the connection with HTTP/2 error 11"),
        ] {
            assert_eq!(words(&mut log, Connectivity::Idle, Some(disconnect)), Some((level, lost(text))));
            assert_eq!(words(&mut log, Connectivity::TransientFailure("refused".into()), None), None, "known already");
            assert_eq!(words(&mut log, Connectivity::Ready, None), Some((level, lost("is connected again"))));
        }
        let refused = Connectivity::TransientFailure("refused".into());
        assert_eq!(words(&mut log, refused.clone(), None), Some((Level::Warn, lost("is down: refused"))));
        log.forget(SubchannelId(1));
        assert_eq!(words(&mut log, Connectivity::Ready, None), None, "another one has its number");
    }

    #[test]
    fn policies_are_put_in_words() {
        let ejection = |ejected| Observation::Ejection {
            cluster: "c".into(),
            addresses: vec!["127.0.0.1:1".parse().unwrap()],
            ejected,
        };
        for (observation, text) in [
            (ejection(true), "endpoint 127.0.0.1:1 of cluster \"c\" is ejected for its failures"),
            (ejection(false), "endpoint 127.0.0.1:1 of cluster \"c\" is back in use after its ejection"),
            (
                Observation::Priority { cluster: "c".into(), from: 0, to: 1, of: 3 },
                "cluster \"c\" uses priority 1 of 0 to 2, after 0",
            ),
            (
                Observation::Leaf { cluster: "l".into(), to: 1, from: 0, of: 2 },
                "leaf cluster \"l\", number 2 of 2 of its aggregate, is used after number 1",
            ),
        ] {
            assert_eq!(of_policy(&observation), Some(Words { level: Level::Warn, text: text.to_owned() }));
        }
    }

    #[test]
    fn a_burst_is_cut_and_counted() {
        let start = Instant::now();
        let mut log = EndpointLog::new("xds:///t", start);
        let priority = |to| Observation::Priority { cluster: "c".into(), from: 0, to, of: 9 };
        (0..50).for_each(|to| log.observation(&priority(to), start));
        assert_eq!((log.take().len(), log.limit.left_out), (BURST as usize, 30));
        log.observation(&priority(1), start + REFILL / 2);
        assert_eq!((log.take().len(), log.limit.left_out), (0, 31));
        log.observation(&priority(1), start + REFILL);
        assert_eq!((log.take().len(), log.limit.left_out), (1, 0), "told with the first line that there is room for");
        let later = start + 100 * REFILL;
        (0..50).for_each(|to| log.observation(&priority(to), later));
        assert_eq!(log.take().len(), BURST as usize, "a quiet time is not saved up");
    }

    #[test]
    fn the_end_of_a_trouble_is_told_as_loudly_as_its_beginning() {
        let server = Arc::new(ServerConfig::insecure("127.0.0.1:1"));
        let mut log = ReportLog::default();
        let unreachable = |cause: &str| Report::Unreachable(server.clone(), cause.to_owned(), Duration::ZERO);
        let received = Received { resources: 1, valid: 0, invalid: 1 };
        let nacked = |version: &str, error: &str| {
            Report::Nacked(server.clone(), ResourceType::Cluster, version.into(), received, error.to_owned())
        };
        let acked = Report::Acked(server.clone(), ResourceType::Cluster, "3".into(), received);
        let first = Report::Answered(server.clone());
        for (report, level, end) in [
            (first.clone(), Level::Debug, "first response of 127.0.0.1:1"),
            (unreachable("refused"), Level::Warn, "refused"),
            (unreachable("refused"), Level::Debug, "refused"),
            (unreachable("no route"), Level::Warn, "no route"),
            (first.clone(), Level::Warn, "first response of 127.0.0.1:1, which was unreachable"),
            (first, Level::Debug, "first response of 127.0.0.1:1"),
            (unreachable("refused"), Level::Warn, "refused"),
            (Report::Alive(server.clone()), Level::Warn, "127.0.0.1:1 is reachable again, nothing new"),
            (acked.clone(), Level::Debug, "version \"3\""),
            (nacked("1", "bad"), Level::Warn, "bad"),
            (nacked("2", "bad"), Level::Debug, "bad"),
            (nacked("2", "worse"), Level::Warn, "worse"),
            (acked.clone(), Level::Warn, "version \"3\", after one that was rejected"),
            (acked, Level::Debug, "version \"3\""),
        ] {
            let words = log.words(&report);
            assert_eq!(words.level, level, "{report}");
            assert!(words.text.ends_with(end), "{}", words.text);
        }
    }
}
