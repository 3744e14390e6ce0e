//! What the xDS client says of its control planes, in the words of the demo.

use std::collections::BTreeSet;

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
        let wanted = matches!(
            event,
            Event::Unreachable { .. }
                | Event::StreamEnded { .. }
                | Event::Connected { .. }
                | Event::FellBack { .. }
                | Event::Recovered { .. }
                | Event::Nacked { .. }
                | Event::TimedOut { .. }
                | Event::Ignored { .. }
                | Event::DeletionIgnored { .. }
        );
        // What goes without saying: attempts, answers, updates that were accepted.
        let server = event.server().filter(|_| wanted)?;
        let name = format!("{server} ({})", role(server));
        let text = with_name(&event.to_string(), server, &name);
        Some(if matches!(event, Event::Unreachable { .. }) { Self::once(name, text) } else { Self::always(text) })
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

/// A line with the name of the server where its address was, and without the address in the cause, as the line has it
/// already.
fn with_name(line: &str, server: &str, name: &str) -> String {
    match line.split_once(server) {
        Some((before, after)) => format!("{before}{name}{}", after.replacen(&format!("{server}: "), "", 1)),
        None => line.to_owned(),
    }
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
        let line = "127.0.0.1:1 is unreachable, next attempt in 1.0 s: cannot connect: 127.0.0.1:1: Connection refused";
        assert_eq!(
            with_name(line, "127.0.0.1:1", "127.0.0.1:1 (primary)"),
            "127.0.0.1:1 (primary) is unreachable, next attempt in 1.0 s: cannot connect: Connection refused"
        );
        assert_eq!(
            with_name("the stream to 127.0.0.1:1 ended: it was cut", "127.0.0.1:1", "127.0.0.1:1 (primary)"),
            "the stream to 127.0.0.1:1 (primary) ended: it was cut"
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
        assert_eq!(connected.text, format!("connected to {uri} (primary), stream open"));
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
