//! What the client shows of itself, what it shares, and events that come at odd times.

use std::sync::Arc;
use std::time::Duration;

use super::talk::{Middle, Setup, response};
use crate::Time;
use crate::bootstrap::ServerConfig;
use crate::client::{
    Action, CloseCause, ErrorKind, Event, Intern, Output, Parsed, Report, ResourceCount, ResourceError, ResourceState,
    ResourceStatus, ServerState, ServerStatus, StreamId, Update, XdsClient,
};
use crate::invalid::Invalid;
use crate::name::{AuthorityKey, ResourceKey};
use crate::resource::{ParseContext, Resource, ResourceType};

#[test]
fn clients_of_one_process_parse_and_hold_equal_bytes_once() {
    let mut memory = Memory::default();
    let mut hold = |name: &str| {
        let mut talk = Setup::new(&["a"]).start();
        talk.step("watch LDS shop");
        talk.step("up a");
        let event = Event::Received(talk.stream("a", 0), response(&["LDS", "1", "A:", name]));
        talk.client.handle_event_sharing(talk.now, &mut Middle, &mut memory, event);
        loop {
            match talk.client.poll_output() {
                Output::Do(Action::Notify(_, Update::Changed(Resource::Listener(listener), _))) => {
                    return (listener, talk.client.dump().remove(0).value.expect("a value").bytes);
                }
                Output::Do(_) => {}
                Output::Wait(_) => panic!("nothing was told"),
            }
        }
    };
    let (first, second, other) = (hold("shop"), hold("shop"), hold("shop:=x"));
    assert!(Arc::ptr_eq(&first.0, &second.0));
    assert_eq!(first.1.as_ptr(), second.1.as_ptr());
    assert!(!Arc::ptr_eq(&first.0, &other.0));
    assert_eq!(memory.0.len(), 2, "one parse for each content");
}

#[test]
fn what_is_bad_or_not_asked_for_is_not_shared() {
    let mut memory = Memory::default();
    let mut talk = Setup::new(&["a"]).start();
    talk.step("watch LDS shop");
    talk.step("up a");
    let event = Event::Received(talk.stream("a", 0), response(&["LDS", "1", "A:", "shop!!", "stranger"]));
    talk.client.handle_event_sharing(talk.now, &mut Middle, &mut memory, event);
    assert_eq!(memory.0, []);
}

#[test]
fn the_dump_shows_every_state_with_value_and_error_c18() {
    let mut talk = Setup::new(&["a"]).start();
    talk.step("watch LDS acked & watch LDS deleted & watch LDS errored & watch LDS nacked & watch LDS new");
    talk.step("up a");
    talk.step("wait 3 s");
    talk.step("a< LDS 1 A: acked deleted nacked");
    talk.step("wait 2 s");
    talk.step("a< LDS 2 B: acked nacked!! errored??7");
    let dump = talk.client.dump();
    let brief = |status: &ResourceStatus| {
        let value =
            status.value.as_ref().map(|v| (v.provenance.version.to_string(), v.provenance.at.since_start().as_secs()));
        let error = status.error.as_ref().map(|error| error.at.since_start().as_secs());
        (status.resource.name.to_string(), status.state, value, error)
    };
    let brief: Vec<_> = dump.iter().map(brief).collect();
    let value = |version: &str, at| Some((version.to_owned(), at));
    assert_eq!(
        brief,
        [
            ("acked".to_owned(), ResourceState::Acked, value("2", 5), None),
            ("deleted".to_owned(), ResourceState::DoesNotExist, value("1", 3), Some(5)),
            ("errored".to_owned(), ResourceState::ReceivedError, None, Some(5)),
            ("nacked".to_owned(), ResourceState::Nacked, value("1", 3), Some(5)),
            ("new".to_owned(), ResourceState::Requested, None, None),
        ]
    );
    let raw = &dump[0].value.as_ref().expect("a value");
    assert_eq!(raw.provenance.server.server_uri, "a");
    assert!(raw.bytes.windows(5).any(|window| window == b"acked"), "the bytes as they came");
    // Entries without a watcher are not shown, even while they are kept (C-64).
    talk.step("block a");
    talk.step("a< LDS 3 C: acked");
    talk.step("unwatch w0");
    assert_eq!(talk.client.dump().len(), 4);

    let transient = Setup::new(&["a"]).features(|features| features.resource_timer_is_transient_error = true);
    let mut talk = transient.start();
    talk.step("watch LDS l");
    talk.step("up a");
    talk.step("wait 30 s");
    assert_eq!(talk.client.dump()[0].state, ResourceState::TimedOut);
}

#[test]
fn resources_are_counted_by_type_and_state_and_responses_by_what_was_in_them_s72_s74() {
    let mut talk = Setup::new(&["a"]).authority("east", &["a"], false).start();
    for name in ["one", "two", "three", "four", "five", "xdstp://east/envoy.config.listener.v3.Listener/six"] {
        talk.step(&format!("watch LDS {name}"));
    }
    talk.step("watch RDS routes");
    talk.step("up a");
    let mut received = |words: &[&str]| {
        let event = Event::Received(talk.stream("a", 0), response(words));
        talk.client.handle_event(talk.now, &mut Middle, event);
        let mut received = None;
        while let Output::Do(action) = talk.client.poll_output() {
            if let Action::Report(Report::Acked(_, _, _, counts) | Report::Nacked(_, _, _, counts, _)) = action {
                received = Some((counts.resources, counts.valid, counts.invalid));
            }
        }
        received
    };
    let first = ["LDS", "1", "A:", "one", "two", "three", "unasked"];
    assert_eq!(received(&first), Some((4, 3, 0)), "nobody watches the last one");
    let second = ["LDS", "2", "B:", "one", "two!!", "three", "four!!", "five??7"];
    assert_eq!(received(&second), Some((4, 2, 3)), "unchanged is valid, an error is invalid");
    let count = |c: &ResourceCount| {
        let named = matches!(c.authority, AuthorityKey::Named(_));
        (named, c.resource_type, c.state, c.cached, c.count)
    };
    let (lds, rds) = (ResourceType::Listener, ResourceType::RouteConfig);
    assert_eq!(
        talk.client.count_resources().iter().map(count).collect::<Vec<_>>(),
        [
            (false, lds, ResourceState::Acked, true, 2),
            (false, lds, ResourceState::Nacked, false, 1),
            (false, lds, ResourceState::Nacked, true, 1),
            (false, lds, ResourceState::ReceivedError, false, 1),
            (false, rds, ResourceState::Requested, false, 1),
            (true, lds, ResourceState::Requested, false, 1),
        ]
    );
}

#[test]
fn the_states_of_servers_are_those_of_their_connections_c56() {
    let states = |client: &XdsClient| -> Vec<(String, ServerState, bool)> {
        let brief = |s: &ServerStatus| (s.server.server_uri.clone(), s.state, s.last_error.is_some());
        client.server_states().iter().map(brief).collect()
    };
    let ab =
        |a: (ServerState, bool), b: (ServerState, bool)| vec![("a".to_owned(), a.0, a.1), ("b".to_owned(), b.0, b.1)];
    let mut talk = Setup::new(&["a", "b"]).start();
    assert_eq!(states(&talk.client), []);
    talk.step("watch LDS l");
    assert_eq!(states(&talk.client), ab((ServerState::Connecting, false), (ServerState::Idle, false)));
    talk.step("refuse a");
    assert_eq!(states(&talk.client), ab((ServerState::TransientFailure, true), (ServerState::Connecting, false)));
    talk.step("up b");
    talk.step("wait 1 s");
    assert_eq!(states(&talk.client), ab((ServerState::TransientFailure, true), (ServerState::Ready, false)));
    talk.step("up a");
    assert_eq!(states(&talk.client), ab((ServerState::Ready, true), (ServerState::Ready, false)));
    talk.step("a< LDS 1 A: l");
    assert_eq!(states(&talk.client), ab((ServerState::Ready, false), (ServerState::Idle, false)));
}

#[test]
fn observers_hear_the_whole_story() {
    Setup::new(&["a", "b"]).show_reports().start().run(
        "
        watch LDS l
          active a
          Connecting a
          open a 5 s
        refuse a
          Unreachable a refused 1000 ms
          active b
          FellBack b
          Connecting b
          open b 20 s
        up b
          Connected b
          b> LDS - -: l +node
        b< LDS 1 A: l
          Answered b
          Acked b Listener 1 1
          b> LDS 1 A: l
          w0 changed: 1 from b 1
        b< LDS 2 B: l!!
          Nacked b Listener 2 Listener \"l\": <faults>
          b> LDS 1 B: l NACK Listener \"l\": <faults>
          w0 ambient: rejected from b 2
        wait 1 s
          Connecting a
          open a 5 s
        up a
          Connected a
          a> LDS - -: l +node
        a< LDS 1 A: l
          Answered a
          active a
          Recovered a
          Acked a Listener 1 1
          a> LDS 1 A: l
          close b
          w0 confirmed: from a 1
        end a
          StreamEnded a ended 0 ms
          Connecting a
          open a 5 s
        ",
    );
}

#[test]
fn error_texts_name_resource_server_node_and_cause_c30() {
    let text = |server: Option<&str>, kind: ErrorKind| {
        let resource = ResourceKey { resource_type: ResourceType::Listener, name: "shop".into() };
        let server = server.map(|uri| Arc::new(ServerConfig::insecure(uri)));
        ResourceError { resource, server, node_id: "n1".into(), kind, at: Time::ZERO }.to_string()
    };
    let server = Some("10.0.0.1:18000");
    let after = Duration::from_secs(15);
    assert_eq!(
        text(server, ErrorKind::DoesNotExist { after }),
        r#"Listener "shop" does not exist on 10.0.0.1:18000 (node "n1"), 15 s after it was requested"#
    );
    assert_eq!(
        text(server, ErrorKind::TimedOut { after: Duration::from_millis(1500) }),
        r#"Listener "shop" was not sent by 10.0.0.1:18000 (node "n1") within 1500 ms"#
    );
    assert_eq!(text(server, ErrorKind::Deleted), r#"Listener "shop" was deleted on 10.0.0.1:18000 (node "n1")"#);
    assert_eq!(
        text(server, ErrorKind::Unreachable("cannot connect: refused".to_owned())),
        r#"Listener "shop" cannot be fetched from 10.0.0.1:18000 (node "n1"), which is unreachable: cannot connect: refused"#
    );
    let invalid = Invalid::one("api_listener", "is missing");
    assert_eq!(
        text(server, ErrorKind::Rejected { version: "7".into(), invalid }),
        r#"Listener "shop" version "7" from 10.0.0.1:18000 (node "n1") was rejected: api_listener: is missing"#
    );
    assert_eq!(
        text(server, ErrorKind::FromServer { code: 5, message: "no such thing".to_owned() }),
        r#"Listener "shop": 10.0.0.1:18000 (node "n1") answered with NOT_FOUND: no such thing"#
    );
    assert_eq!(
        text(server, ErrorKind::FromServer { code: 99, message: String::new() }),
        r#"Listener "shop": 10.0.0.1:18000 (node "n1") answered with status 99: "#
    );
    assert_eq!(
        text(None, ErrorKind::UnknownAuthority("x".to_owned())),
        r#"Listener "shop" cannot be requested (node "n1"): authority "x" is not in the bootstrap"#
    );
    assert_eq!(
        text(None, ErrorKind::InvalidName("bad".to_owned())),
        r#"Listener "shop" is not a usable name (node "n1"): bad"#
    );
    let ended = |message: &str| CloseCause::Ended { code: 0, message: message.to_owned() }.to_string();
    assert_eq!(ended(""), "the server ended the stream: OK");
    assert_eq!(ended("bye"), "the server ended the stream: OK: bye");
}

#[test]
fn a_value_is_shared_until_its_meaning_changes_c86() {
    let mut talk = Setup::new(&["a"]).start();
    talk.step("watch EDS e");
    talk.step("up a");
    talk.step("a< EDS 1 A: e:=80");
    let before = talk.client.clone();
    // Other bytes, same meaning: the value is the same object.
    talk.step("a< EDS 2 B: [e]:=80");
    let held =
        |client: &XdsClient| client.cache.get(ResourceType::Endpoints, "e").and_then(|e| e.cached.held().cloned());
    let (before, after) = (held(&before).expect("a value"), held(&talk.client).expect("a value"));
    assert_ne!(before.raw, after.raw);
    match (before.resource, after.resource) {
        (Resource::Endpoints(before), Resource::Endpoints(after)) => {
            assert!(Arc::ptr_eq(&before, &after));
        }
        other => panic!("not endpoints: {other:?}"),
    }
}

#[test]
fn a_kept_resource_does_not_keep_its_response_in_memory() {
    let mut talk = Setup::new(&["a"]).start();
    talk.step("watch EDS e");
    talk.step("up a");
    let message = super::talk::response(&["EDS", "1", "A:", "e:=80"]);
    talk.client.handle_event(talk.now, &mut Middle, Event::Received(talk.stream("a", 0), message.clone()));
    let raw = &talk.client.dump()[0].value.as_ref().expect("a value").bytes.clone();
    let inside = message.as_ptr_range().contains(&raw.as_ptr());
    assert!(!inside, "a slice of the response");
}

#[test]
fn the_same_bytes_from_another_server_are_read_again_c53() {
    // The clusters here report load to the server they came from, so they differ by it.
    let mut talk = Setup::new(&["a", "b"]).start();
    talk.step("watch CDS c");
    talk.step("refuse a");
    talk.step("up b");
    talk.step("b< CDS 1 A: c:=e");
    talk.step("wait 1 s");
    talk.step("up a");
    assert_eq!(talk.step("a< CDS 1 A: c:=e").last().map(String::as_str), Some("w0 changed: e from a 1"));
    assert_eq!(talk.client.dump()[0].value.as_ref().map(|v| v.provenance.server.server_uri.as_str()), Some("a"));
}

#[test]
fn late_early_and_repeated_events_do_nothing_p26() {
    let mut talk = Setup::new(&["a"]).start();
    talk.step("watch EDS e");
    talk.step("up a");
    talk.step("a< EDS 1 A: e:=80");
    talk.step("watch EDS f");
    let before = talk.client.clone();
    let stream = talk.stream("a", 0);
    let now = talk.now;
    // A second word that the stream is open, or that nothing was sent; a timeout before its time.
    talk.client.handle_event(now, &mut Middle, Event::Opened(stream));
    talk.client.handle_event(now, &mut Middle, Event::Sent(stream));
    talk.client.handle_timeout(now + Duration::from_secs(4), &mut Middle);
    // A stream that never was.
    let other = StreamId(4711);
    talk.client.handle_event(now, &mut Middle, Event::Opened(other));
    talk.client.handle_event(now, &mut Middle, Event::Received(other, super::talk::response(&["EDS", "2", "B:", "e"])));
    talk.client.handle_event(now, &mut Middle, Event::Closed(other, CloseCause::ConnectionLost(String::new())));
    assert_eq!(talk.client.clone().poll_output(), Output::Wait(Some(now + Duration::from_secs(5))));
    assert_eq!(talk.step("wait 0 s"), [""; 0]);
    assert_eq!(talk.client, before);
    // A message before the stream is open.
    let mut talk = Setup::new(&["a"]).start();
    talk.step("watch EDS e");
    assert_eq!(talk.step("a< EDS 1 A: e:=80"), [""; 0]);
    // Watches that are not there.
    assert_eq!(talk.step("unwatch w7"), [""; 0]);
}

#[test]
fn a_reset_of_the_backoff_tries_waiting_servers_at_once_c83() {
    let mut talk = Setup::new(&["a"]).start();
    talk.step("watch EDS e");
    talk.step("refuse a");
    talk.step("wait 1 s");
    talk.step("refuse a");
    talk.client.reset_backoff();
    assert_eq!(talk.step("wait 0 s"), ["open a 20 s"]);
    // And the next pause is the first one again.
    talk.step("refuse a");
    assert_eq!(talk.step("wait 1 s"), ["open a 20 s"]);
    assert_eq!(talk.client.timers.len(), 0);
    // An attempt that is under way goes on.
    talk.client.reset_backoff();
    assert_eq!(talk.step("wait 0 s"), [""; 0]);
}

#[test]
fn a_server_that_does_not_read_cannot_make_us_remember_answers_without_end() {
    let mut talk = Setup::new(&["a"]).start();
    talk.step("watch EDS e");
    talk.step("block a");
    talk.step("up a");
    for n in 0..1000 {
        talk.step(&format!("a< EDS {n} N{n}: e:=80"));
    }
    let answers = talk.step("unblock a");
    assert_eq!(answers.len(), 64);
    assert_eq!(answers.last().map(String::as_str), Some("a> EDS 999 N999: e"));
}

#[test]
fn a_nack_of_a_hostile_response_is_bounded() {
    let mut talk = Setup::new(&["a"]).start();
    talk.step("watch EDS e");
    talk.step("up a");
    let many: Vec<String> = (0..10_000).map(|n| format!("{n}!!")).collect();
    let done = talk.step(&format!("a< EDS 1 A: {}", many.join(" ")));
    assert!(done[0].ends_with("; and 9968 more faulty resources"), "{}", done[0]);
    let long = format!("{}!!", "x".repeat(100_000));
    let done = talk.step(&format!("a< EDS 1 B: {long}"));
    assert!(done[0].len() < 20_000);
}

/// Forgets nothing.
#[derive(Default)]
struct Memory(Vec<Parsed>);

impl Intern for Memory {
    fn find(&mut self, resource_type: ResourceType, bytes: &[u8], _: ParseContext<'_>) -> Option<Parsed> {
        let is_it = |known: &&Parsed| known.resource.resource_type() == resource_type && known.bytes == bytes;
        self.0.iter().find(is_it).cloned()
    }

    fn keep(&mut self, resource: Resource, bytes: &[u8], _: ParseContext<'_>) -> Parsed {
        let parsed = Parsed { resource, bytes: bytes.to_vec().into() };
        self.0.push(parsed.clone());
        parsed
    }
}
