use std::collections::BTreeMap;

use super::*;
use crate::kubernetes::configmaps::Judge;
use crate::kubernetes::model::Frame;
use crate::kubernetes::object::{Family, Port};

#[test]
fn nothing_is_brought_before_every_list_is_there_kb14() {
    let mut replica = replica(&["m", "n"]);
    assert_eq!(replica.targets(), 6);
    let mut brought = 0;
    for index in 0..6 {
        assert_eq!((brought, replica.standing(at(1))), (0, Standing::Empty), "before list {index}");
        replica.handle(at(1), 0.0, index, empty_list());
        brought += bring(&mut replica, at(1));
    }
    assert_eq!(brought, 1);
}

#[test]
fn what_is_served_is_as_fresh_as_the_oldest_answer_fb27() {
    let mut replica = serving();
    assert_eq!(replica.standing(at(15)), Standing::Empty, "no question was answered");
    for index in 0..3 {
        replica.handle(at(20), 0.0, index, News::Open { attempt: 2 });
    }
    replica.settle(at(20));
    for (index, seconds) in [(0, 21), (1, 22)] {
        read(&mut replica, index, at(seconds));
        replica.settle(at(22));
        assert_eq!(replica.confirmed(), None);
    }
    read(&mut replica, 2, at(23));
    replica.settle(at(23));
    assert_eq!((replica.confirmed(), replica.standing(at(23))), (Some(at(20)), Standing::Fresh));
}

#[test]
fn what_is_wrong_is_told_with_what_it_is_about_kb11() {
    let mut replica = replica(&["m"]);
    replica.handle_timeout(at(0), 0.0);
    let listed = Err(Trouble::Failed("403 Forbidden: no".to_owned()));
    replica.handle(at(1), 0.0, 1, News::Listed { attempt: 1, listed });
    assert_eq!(replica.trouble().as_deref(), Some("endpointslices of namespace m: 403 Forbidden: no"));
}

#[test]
fn changes_in_a_row_are_brought_together_kb7() {
    let mut replica = serving();
    replica.handle(at(20), 0.0, 0, News::Open { attempt: 2 });
    let mut brought = 0;
    for n in 0..50 {
        let now = at(20) + Duration::from_millis(10 * n);
        let key = Key::new("m", format!("s{n}"));
        let value = Object::Service(Service::Sliced {
            ports: vec![Port { name: String::new(), number: 80 }],
            family: Family::V4,
        });
        let told = Told::Put { key, version: (100 + n).to_string(), value };
        replica.handle(now, 0.0, 0, News::Told { attempt: 2, told });
        brought += bring(&mut replica, now);
    }
    assert_eq!(brought, 5, "one at once, and then one in 100 ms");
    assert!(replica.deadline(at(21)) <= at(21), "the last of them is not forgotten");
}

fn serving() -> Replica {
    let mut replica = replica(&[]);
    replica.handle_timeout(at(0), 0.0);
    for index in 0..replica.targets() {
        replica.handle(at(0), 0.0, index, empty_list());
    }
    assert_eq!(bring(&mut replica, at(0)), 1);
    replica
}

fn read(replica: &mut Replica, index: usize, now: Duration) {
    replica.handle(now, 0.0, index, News::Read { sent: at(20), outcome: Ok(()) });
}

fn bring(replica: &mut Replica, now: Duration) -> usize {
    replica.settle(now);
    std::iter::from_fn(|| replica.poll_order()).filter(|order| matches!(order, Order::Bring(..))).count()
}

fn empty_list() -> News {
    News::Listed { attempt: 1, listed: Ok(Listed { version: "1".to_owned(), items: BTreeMap::new() }) }
}

fn replica(namespaces: &[&str]) -> Replica {
    let namespaces: Vec<_> = namespaces.iter().map(|&namespace| namespace.to_owned()).collect();
    let frame = Frame { domain: "cluster.local".to_owned(), region: String::new() };
    let model = Model::new(frame, Judge::new(|_: &_| Ok(())));
    let mut replica = Replica::new(&namespaces, model, Limits::default(), false);
    replica.handle_timeout(at(0), 0.0);
    replica
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
