//! What the xDS client says of its control planes, in the words of the demo.

use std::{collections::BTreeSet, time::Duration};

use mainstay::event::Event;

/// Something that the xDS client says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    /// Of several lines about one topic, a scene tells only the first.
    topic: Option<String>,
    text: String,
}

/// What was told of it in one scene.
#[derive(Debug, Default)]
pub(super) struct Heard {
    lines: Vec<String>,
    topics: BTreeSet<String>,
}

impl Said {
    /// A line that is told as often as it is said.
    pub(super) fn always(text: String) -> Self {
        Self { topic: None, text }
    }

    /// A line about a topic.
    pub(super) fn once(topic: String, text: String) -> Self {
        Self { topic: Some(topic), text }
    }

    /// An event of the client, if the audience wants to know of it. `role` is what the demo calls a server.
    pub(super) fn of(event: &Event, role: impl Fn(&str) -> &'static str) -> Option<Self> {
        let name = |server: &str| format!("{server} ({})", role(server));
        Some(match event {
            Event::Unreachable { server, cause, retry_after, .. } => {
                Self::unreachable(server, name(server), cause, *retry_after)
            }
            Event::StreamEnded { server, cause, retry_after, .. } => {
                Self::stream_ended(server, &name(server), cause, *retry_after)
            }
            Event::Connected { server, .. } => Self::always(format!("connected to {}", name(server))),
            Event::FellBack { server, .. } => Self::always(format!("fell back to {}", name(server))),
            Event::Recovered { server, .. } => Self::always(format!("returned to {}", name(server))),
            Event::Nacked { server, resource_type, version, error, .. } => {
                Self::always(format!("rejected {resource_type} version {version} from {}: {error}", name(server)))
            }
            Event::TimedOut { server, resource, .. } => {
                Self::always(format!("{} did not send {resource} in time", name(server)))
            }
            Event::Ignored { server, reason, .. } => Self::always(format!("ignored from {}: {reason}", name(server))),
            Event::DeletionIgnored { server, resource, .. } => {
                Self::always(format!("{} deleted {resource}, which stays in use", name(server)))
            }
            // What goes without saying: attempts, answers, updates that were accepted.
            _ => return None,
        })
    }

    fn unreachable(server: &str, name: String, cause: &str, retry_after: Duration) -> Self {
        let cause = without_address(cause, server);
        let text = format!("{name} cannot be reached: {cause}; next attempt {}", after(retry_after));
        Self::once(name, text)
    }

    fn stream_ended(server: &str, name: &str, cause: &str, retry_after: Duration) -> Self {
        let cause = without_address(cause, server);
        Self::always(format!("the stream to {name} is over: {cause}; next one {}", after(retry_after)))
    }
}

impl Heard {
    /// Takes note of a line, and returns it if it is to be told.
    pub(super) fn note(&mut self, said: Said) -> Option<&str> {
        if said.topic.is_some_and(|topic| !self.topics.insert(topic)) {
            return None;
        }
        self.lines.push(said.text);
        self.lines.last().map(String::as_str)
    }

    /// Everything that was told, in order.
    pub(super) fn lines(&self) -> &[String] {
        &self.lines
    }
}

/// A cause without the address of the server, which the line has named already.
fn without_address<'a>(cause: &'a str, uri: &str) -> &'a str {
    cause.split_once(&format!("{uri}: ")).map_or(cause, |(_, rest)| rest)
}

fn after(pause: Duration) -> String {
    if pause.is_zero() { "at once".to_owned() } else { format!("in {:.1} s", pause.as_secs_f64()) }
}

#[cfg(test)]
mod tests {
    use mainstay::{
        Channel,
        bootstrap::{Bootstrap, ServerConfig},
    };
    use mainstay_control_plane::ControlPlane;

    use super::*;

    #[test]
    fn lines_name_the_server_its_role_and_the_cause() {
        let (server, name) = ("127.0.0.1:1", "127.0.0.1:1 (primary)");
        let cause = "cannot connect: 127.0.0.1:1: Connection refused";
        assert_eq!(
            Said::unreachable(server, name.to_owned(), cause, Duration::from_millis(1040)).text,
            "127.0.0.1:1 (primary) cannot be reached: Connection refused; next attempt in 1.0 s"
        );
        assert_eq!(
            Said::stream_ended(server, name, "it was cut", Duration::ZERO).text,
            "the stream to 127.0.0.1:1 (primary) is over: it was cut; next one at once"
        );
    }

    #[tokio::test]
    async fn the_audience_hears_of_connections_and_not_of_attempts() {
        let server = ControlPlane::new().serve("127.0.0.1:0").await.unwrap();
        let uri = server.addr().to_string();
        let bootstrap = Bootstrap::builder().server(ServerConfig::insecure(&uri)).build().unwrap();
        let channel = Channel::builder("xds:///service").bootstrap(bootstrap).build().unwrap();
        let mut events = channel.events();
        let attempt = events.next().await.unwrap();
        assert!(matches!(attempt, Event::Connecting { .. }), "{attempt}");
        assert_eq!(Said::of(&attempt, |_| "primary"), None);
        let connected = Said::of(&events.next().await.unwrap(), |_| "primary").unwrap();
        assert_eq!(connected.text, format!("connected to {uri} (primary)"));
    }

    #[test]
    fn of_several_lines_about_a_topic_only_the_first_is_told() {
        let mut heard = Heard::default();
        let once = |text: &str| Said::once("a".to_owned(), text.to_owned());
        assert_eq!(heard.note(once("in 1 s")), Some("in 1 s"));
        assert_eq!(heard.note(once("in 2 s")), None);
        assert_eq!(heard.note(Said::always("again".to_owned())), Some("again"));
        assert_eq!(heard.note(Said::always("again".to_owned())), Some("again"));
        assert_eq!(heard.lines(), ["in 1 s", "again", "again"]);
    }
}
