//! The socket of an address, and how connections are drained.

use super::*;

#[test]
fn a_socket_that_cannot_listen_is_told_and_tried_again() {
    // SV-7
    let mut bed = Testbed::new();
    bed.add(OURS);
    bed.socket = Answer::Fails;
    bed.listeners("a", &[(L, server_inline(OURS, "1"))]);
    let why = "0: NOT SERVING: cannot listen on 10.0.0.1:50051: taken";
    assert_eq!(bed.told(), ["0: publish g1 inline=1", "0: listen", why]);
    bed.wait(SECOND - Duration::from_nanos(1));
    assert_eq!(bed.told(), Vec::<String>::new());
    bed.wait(SECOND);
    assert_eq!(bed.told(), ["0: listen"], "the same is not told again");
    bed.socket = Answer::Ok;
    bed.wait(SECOND);
    assert_eq!(bed.told(), ["0: listen", "0: SERVING"]);
    bed.wait(SECOND * 10);
    assert_eq!(bed.told(), Vec::<String>::new());
}

#[test]
fn a_socket_that_cannot_listen_is_left_alone_when_nothing_is_served() {
    let mut bed = Testbed::new();
    bed.add(OURS);
    bed.socket = Answer::Fails;
    bed.listeners("a", &[(L, server_inline(OURS, "1"))]);
    bed.told();
    bed.listeners("a", &[(L, client())]);
    assert_eq!(bed.told()[..2], ["0: publish nothing", "0: drain g1 for 600 s"]);
    bed.wait(SECOND * 10);
    assert_eq!(bed.told(), Vec::<String>::new());
}

#[test]
fn a_socket_that_cannot_be_bound_again_is_tried_again() {
    // SV-8: in the end as what is wanted by then.
    let (mut bed, _) = Testbed::serving();
    bed.socket = Answer::Fails;
    bed.listeners("a", &[(L, client())]);
    assert_eq!(bed.told()[1], "0: stop listening");
    bed.wait(SECOND);
    assert_eq!(bed.told(), ["0: stop listening"]);
    bed.listeners("a", &[(L, server_inline(OURS, "2"))]);
    assert_eq!(bed.told(), ["0: publish g2 inline=2"]);
    bed.socket = Answer::Ok;
    bed.wait(SECOND);
    assert_eq!(bed.told(), ["0: listen", "0: SERVING"]);
}

#[test]
fn what_is_taken_away_while_the_socket_opens_is_closed_when_it_is_open() {
    // SV-5: a port is open exactly while the address is served.
    let mut bed = Testbed::new();
    let id = bed.add(OURS);
    bed.socket = Answer::Late;
    bed.listeners("a", &[(L, server_inline(OURS, "1"))]);
    bed.listeners("a", &[(L, client())]);
    let told = bed.told();
    assert_eq!(told[..4], ["0: publish g1 inline=1", "0: listen", "0: publish nothing", "0: drain g1 for 600 s"]);
    bed.core.handle_socket(bed.now, id, Ok(()));
    bed.settle();
    assert_eq!(bed.told(), ["0: stop listening"]);
    bed.listeners("a", &[(L, server_inline(OURS, "2"))]);
    assert_eq!(bed.told(), ["0: publish g2 inline=2"]);
    bed.core.handle_socket(bed.now, id, Ok(()));
    bed.settle();
    assert_eq!(bed.told(), ["0: listen"]);
    bed.core.handle_socket(bed.now, id, Ok(()));
    bed.settle();
    assert_eq!(bed.told(), ["0: SERVING"]);
    bed.core.handle_socket(bed.now, id, Err("nobody asked".to_owned()));
    bed.settle();
    assert_eq!(bed.told(), Vec::<String>::new());
}

#[test]
fn an_attempt_to_listen_that_fails_when_it_is_not_wanted_any_more_is_not_told() {
    let mut bed = Testbed::new();
    let id = bed.add(OURS);
    bed.socket = Answer::Late;
    bed.listeners("a", &[(L, server_inline(OURS, "1"))]);
    bed.listeners("a", &[(L, client())]);
    bed.told();
    bed.core.handle_socket(bed.now, id, Err("taken".to_owned()));
    bed.wait(SECOND * 5);
    assert_eq!(bed.told(), Vec::<String>::new());
    bed.socket = Answer::Ok;
    bed.listeners("a", &[(L, server_inline(OURS, "2"))]);
    assert_eq!(bed.told(), ["0: publish g2 inline=2", "0: listen", "0: SERVING"]);
}

#[test]
fn a_socket_that_is_closed_is_not_tried_again() {
    let mut bed = Testbed::new();
    let id = bed.add(OURS);
    bed.socket = Answer::Fails;
    bed.listeners("a", &[(L, server_inline(OURS, "1"))]);
    bed.core.shut_down(bed.now, id);
    bed.settle();
    bed.told();
    bed.wait(SECOND * 5);
    assert_eq!(bed.told(), Vec::<String>::new());
}

#[test]
fn many_connections_are_told_one_by_one_and_few_at_once() {
    // SV-23
    struct Draws(u64, u64);
    impl Choose for Draws {
        fn choose(&mut self, bound: u64) -> u64 {
            self.1 = bound;
            self.0
        }
    }
    let at = Time::ZERO + SECOND;
    let drain = Drain { generation: Generation(1), at, until: at + SECOND * 600, spread: SECOND };
    let mut draws = Draws(700, 0);
    assert_eq!(drain.goaway_at(100, &mut draws), at);
    assert_eq!(draws.1, 0, "nothing is drawn");
    assert_eq!(drain.goaway_at(101, &mut draws), at + Duration::from_nanos(700));
    assert_eq!(draws.1, 1_000_000_000);
    // Nobody is told after the end.
    let short = Drain { until: at + Duration::from_nanos(800), ..drain };
    short.goaway_at(101, &mut draws);
    assert_eq!(draws.1, 800);
    let none = Drain { until: at, ..drain };
    assert_eq!(none.goaway_at(101, &mut draws), at);
    let at_once = Drain { spread: Duration::ZERO, ..drain };
    assert_eq!(at_once.goaway_at(101, &mut draws), at);
}
