//! What the xDS client says of its control planes, in the words of the demo.

use std::{collections::BTreeSet, time::Duration};

use mainstay::{Event, bootstrap::ServerConfig};

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
        let name = |server: &ServerConfig| format!("{} ({})", server.server_uri, role(&server.server_uri));
        let text = match event {
            Event::Unreachable(server, cause, pause) => {
                let (name, cause) = (name(server), without_address(cause, &server.server_uri));
                let text = format!("{name} cannot be reached: {cause}; next attempt {}", after(*pause));
                return Some(Self::once(name, text));
            }
            Event::Connected(server) => format!("connected to {}", name(server)),
            Event::StreamEnded(server, cause, pause) => {
                let cause = without_address(cause, &server.server_uri);
                format!("the stream to {} is over: {cause}; next one {}", name(server), after(*pause))
            }
            Event::FellBack(_, server) => format!("fell back to {}", name(server)),
            Event::Recovered(_, server) => format!("returned to {}", name(server)),
            Event::Nacked(server, resource_type, version, _, reason) => {
                format!("rejected {resource_type} version {version} from {}: {reason}", name(server))
            }
            Event::TimedOut(server, key) => {
                format!("{} did not send {} {:?} in time", name(server), key.resource_type, key.name)
            }
            Event::Ignored(server, what) => format!("ignored from {}: {what}", name(server)),
            Event::DeletionIgnored(server, key) => {
                format!("{} deleted {} {:?}, which stays in use", name(server), key.resource_type, key.name)
            }
            // What goes without saying: attempts, answers, updates that were accepted.
            _ => return None,
        };
        Some(Self::always(text))
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
    use std::sync::Arc;

    use super::*;

    #[test]
    fn events_name_the_server_its_role_and_the_cause() {
        let (server, pause) = (Arc::new(ServerConfig::insecure("127.0.0.1:1")), Duration::from_millis(1040));
        let cause = "cannot connect: 127.0.0.1:1: Connection refused".to_owned();
        for (event, expected) in [
            (Event::Connected(server.clone()), "connected to 127.0.0.1:1 (primary)"),
            (
                Event::Unreachable(server.clone(), cause, pause),
                "127.0.0.1:1 (primary) cannot be reached: Connection refused; next attempt in 1.0 s",
            ),
            (
                Event::StreamEnded(server.clone(), "it was cut".to_owned(), Duration::ZERO),
                "the stream to 127.0.0.1:1 (primary) is over: it was cut; next one at once",
            ),
            (Event::Ignored(server.clone(), "a message".to_owned()), "ignored from 127.0.0.1:1 (primary): a message"),
        ] {
            assert_eq!(Said::of(&event, |_| "primary").expect(expected).text, expected);
        }
        for event in [Event::Connecting(server.clone()), Event::Answered(server)] {
            assert_eq!(Said::of(&event, |_| "primary"), None);
        }
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
