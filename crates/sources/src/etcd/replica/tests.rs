use bytes::Bytes;

use super::*;

#[test]
fn it_reads_fetches_watches_from_the_next_revision_and_switches_whole_fb25_fb26() {
    let mut replica = replica(None);
    replica.handle_timeout(at(0));
    assert_eq!(actions(&mut replica), [Action::Connect]);
    replica.handle_connected(at(1));
    assert_eq!(actions(&mut replica), [read(1)]);
    replica.handle_read(at(2), at(1), current(10, 1));
    assert_eq!(actions(&mut replica), [Action::Watch { from: 11 }, Action::Fetch { generation: 1, revision: 10 }]);
    assert_eq!(replica.standing(at(2)), Standing::Empty, "not before it is there as a whole");
    replica.handle_fetched(1, entries(1), revisions(1));
    assert_eq!(actions(&mut replica), [switch(1)]);
    assert_eq!((replica.standing(at(3)), replica.confirmed()), (Standing::Fresh, Some(at(1))));
    assert_eq!((replica.differences(), replica.trouble()), (0, None));
}

#[test]
fn a_generation_that_is_not_whole_is_not_put_into_force_fb25() {
    let mut replica = serving(1);
    replica.handle_watched(CLUSTER, 20, Some(Current::Manifest(manifest(2))));
    assert_eq!(actions(&mut replica), [Action::Fetch { generation: 2, revision: 20 }]);
    replica.handle_fetched(2, entries(1), revisions(1));
    assert_eq!(actions(&mut replica), []);
    assert_eq!(replica.differences(), 1);
    assert!(replica.trouble().is_some_and(|trouble| trouble.starts_with("generation 2 is not whole")));
    // The next read has it fetched again.
    replica.handle_timeout(at(3_100));
    assert_eq!(actions(&mut replica), [Action::Progress, read(3_100)]);
    replica.handle_read(at(3_101), at(3_100), current(20, 2));
    assert_eq!(actions(&mut replica), [Action::Fetch { generation: 2, revision: 20 }]);
    replica.handle_fetched(2, entries(2), revisions(2));
    assert_eq!(actions(&mut replica), [switch(2)]);
    assert_eq!((replica.differences(), replica.trouble()), (1, None));
}

#[test]
fn each_generation_that_comes_while_another_is_fetched_waits_for_it_and_only_the_newest_is_next() {
    let mut replica = serving(1);
    for generation in [2, 3, 4, 3] {
        replica.handle_watched(CLUSTER, 20 + generation as i64, Some(Current::Manifest(manifest(generation))));
    }
    assert_eq!(actions(&mut replica), [Action::Fetch { generation: 2, revision: 22 }]);
    replica.handle_fetched(2, entries(2), revisions(2));
    assert_eq!(actions(&mut replica), [switch(2), Action::Fetch { generation: 4, revision: 24 }]);
    replica.handle_fetched(4, entries(4), revisions(4));
    assert_eq!(actions(&mut replica), [switch(4)]);
}

#[test]
fn it_never_goes_back_fb27() {
    let mut replica = serving(5);
    replica.handle_watched(CLUSTER, 20, Some(Current::Manifest(manifest(4))));
    assert_eq!(actions(&mut replica), []);
    let confirmed = replica.confirmed();
    replica.handle_asked(at(100));
    replica.handle_read(at(101), at(100), current(20, 4));
    assert_eq!(actions(&mut replica), [read(100)]);
    assert_eq!(replica.confirmed(), confirmed, "and does not take that for a confirmation");
    assert_eq!(replica.trouble(), Some("etcd has generation 4 where 5 was in force already"));
}

#[test]
fn numbers_of_another_cluster_are_others_fb27() {
    // etcd was set up anew, and its generations begin at 1.
    let mut replica = serving(5);
    replica.handle_asked(at(100));
    replica.handle_read(at(101), at(100), Read { cluster: CLUSTER + 1, ..current(3, 1) });
    assert_eq!(actions(&mut replica), [read(100), Action::Fetch { generation: 1, revision: 3 }]);
    replica.handle_fetched(1, entries(1), revisions(1));
    let switched = At { cluster: CLUSTER + 1, generation: 1 };
    assert_eq!(actions(&mut replica), [Action::Switch { at: switched, entries: entries(1) }]);
}

#[test]
fn after_a_compaction_it_lists_again_fb26() {
    let mut replica = serving(1);
    replica.handle_compacted(at(50));
    assert_eq!(actions(&mut replica), [read(50)]);
    replica.handle_read(at(51), at(50), current(90, 3));
    assert_eq!(actions(&mut replica), [Action::Watch { from: 91 }, Action::Fetch { generation: 3, revision: 90 }]);
    replica.handle_fetched(3, entries(3), revisions(3));
    assert_eq!(actions(&mut replica), [switch(3)]);
    assert_eq!(replica.differences(), 0, "nothing was lost");
}

#[test]
fn a_read_from_before_a_compaction_counts_for_nothing_fb26() {
    let mut replica = serving(1);
    replica.handle_asked(at(40));
    replica.handle_compacted(at(50));
    actions(&mut replica);
    replica.handle_read(at(51), at(40), current(10, 1));
    assert_eq!(actions(&mut replica), []);
    assert_eq!(replica.confirmed(), Some(at(1)));
}

#[test]
fn what_the_watch_lost_is_found_by_the_second_read_and_counted_fb26() {
    let mut replica = serving(1);
    replica.handle_timeout(at(3_100));
    replica.handle_read(at(3_101), at(3_100), current(20, 2));
    replica.handle_fetched(2, entries(2), revisions(2));
    assert_eq!(
        actions(&mut replica),
        [Action::Progress, read(3_100), Action::Fetch { generation: 2, revision: 20 }, switch(2)]
    );
    assert_eq!(replica.differences(), 0, "the event may be on its way");
    replica.handle_timeout(at(6_200));
    replica.handle_read(at(6_201), at(6_200), current(20, 2));
    assert_eq!(actions(&mut replica), [Action::Disconnect], "what was to be done on it goes with it");
    assert_eq!(replica.differences(), 1);
}

#[test]
fn an_event_that_comes_after_the_read_is_no_difference_fb26() {
    let mut replica = serving(1);
    replica.handle_timeout(at(3_100));
    replica.handle_read(at(3_101), at(3_100), current(20, 2));
    replica.handle_fetched(2, entries(2), revisions(2));
    replica.handle_watched(CLUSTER, 20, Some(Current::Manifest(manifest(2))));
    replica.handle_timeout(at(6_200));
    replica.handle_read(at(6_201), at(6_200), current(20, 2));
    assert!(!actions(&mut replica).contains(&Action::Disconnect));
    assert_eq!(replica.differences(), 0);
}

#[test]
fn keys_are_compared_every_five_minutes_and_after_a_reconnect_fb26() {
    let mut replica = serving(1);
    let mut now = 0;
    let compared = loop {
        now += 1_000;
        replica.handle_timeout(at(now));
        replica.handle_progress();
        let due = actions(&mut replica);
        if due.contains(&Action::Compare { generation: 1 }) {
            break now;
        }
        if due.contains(&read(now)) {
            replica.handle_read(at(now), at(now), current(10, 1));
        }
    };
    assert!((300_000..304_000).contains(&compared), "{compared}");
    replica.handle_compared(at(now), 1, &revisions(1));
    assert_eq!((replica.differences(), actions(&mut replica).len()), (0, 0));

    replica.handle_failure(at(now), "gone".to_owned());
    replica.handle_timeout(at(now + 100));
    assert_eq!(actions(&mut replica), [Action::Disconnect, Action::Connect]);
    replica.handle_connected(at(now + 101));
    replica.handle_read(at(now + 102), at(now + 101), current(10, 1));
    let after = [read(now + 101), Action::Watch { from: 11 }, Action::Compare { generation: 1 }];
    assert_eq!(actions(&mut replica), after);
}

#[test]
fn keys_that_differ_are_counted_and_the_generation_is_read_again_fb26() {
    let mut replica = serving(1);
    let mut found = revisions(1);
    found.insert("envoy.config.cluster.v3.Cluster/extra".to_owned(), 3);
    replica.handle_compared(at(10), 1, &found);
    assert_eq!(replica.differences(), 1);
    assert_eq!(actions(&mut replica), [read(10)]);
    replica.handle_read(at(11), at(10), current(10, 1));
    assert_eq!(actions(&mut replica), [Action::Fetch { generation: 1, revision: 10 }]);
    replica.handle_fetched(1, entries(1), revisions(1));
    assert_eq!((actions(&mut replica), replica.trouble()), (vec![switch(1)], None));
}

#[test]
fn a_watch_without_a_sign_of_life_is_given_up_fb26() {
    let mut replica = serving(1);
    for beat in 1..=3 {
        replica.handle_timeout(at(beat * 3_100));
        replica.handle_read(at(beat * 3_100), at(beat * 3_100), current(10, 1));
    }
    assert!(!actions(&mut replica).contains(&Action::Disconnect));
    replica.handle_timeout(at(12_400));
    assert_eq!(actions(&mut replica), [Action::Disconnect]);
}

#[test]
fn without_the_engine_it_is_behind_then_stale_and_pauses_grow_fb27() {
    let mut replica = serving(1);
    let mut now = 10;
    let mut tries = Vec::new();
    while now < 80_000 {
        replica.handle_failure(at(now), "refused".to_owned());
        assert_eq!(actions(&mut replica), [Action::Disconnect]);
        let next = replica.deadline(at(now)).expect("it tries again");
        let Session::Down { retry_at } = replica.session else { panic!("{replica:?}") };
        assert!(next <= retry_at);
        tries.push(retry_at - at(now));
        now = u64::try_from(retry_at.as_millis()).expect("small");
        replica.handle_timeout(at(now));
        assert_eq!(actions(&mut replica), [Action::Connect]);
    }
    assert_eq!(tries[..3], [at(100), at(200), at(400)]);
    assert!(tries.iter().all(|pause| *pause <= at(2_000)));
    assert_eq!(replica.standing(at(14_000)), Standing::Fresh);
    assert_eq!(replica.standing(at(16_000)), Standing::Behind);
    assert_eq!((replica.standing(at(now)), replica.trouble()), (Standing::Stale, Some("refused")));
}

#[test]
fn who_asks_is_answered_by_a_read_that_began_later_fb27() {
    let mut replica = serving(1);
    replica.handle_asked(at(100));
    replica.handle_asked(at(105));
    assert_eq!(actions(&mut replica), [read(100)], "one at a time");
    replica.handle_read(at(110), at(100), current(10, 1));
    assert_eq!(replica.confirmed(), Some(at(100)));
    assert_eq!(actions(&mut replica), [read(110)]);
    replica.handle_read(at(112), at(110), current(10, 1));
    assert_eq!((replica.confirmed(), actions(&mut replica)), (Some(at(110)), vec![]));
}

#[test]
fn a_confirmation_waits_for_the_generation_that_was_found_fb27() {
    let mut replica = serving(1);
    replica.handle_asked(at(100));
    replica.handle_read(at(101), at(100), current(20, 2));
    assert_eq!(replica.confirmed(), Some(at(1)));
    replica.handle_fetched(2, entries(2), revisions(2));
    assert_eq!(replica.confirmed(), Some(at(100)));
}

#[test]
fn what_came_from_the_disk_is_kept_if_etcd_has_the_same_fb28() {
    let mut replica = replica(Some((At { cluster: CLUSTER, generation: 7 }, manifest(7).digest)));
    assert_eq!(replica.standing(at(0)), Standing::Behind);
    replica.handle_timeout(at(0));
    replica.handle_connected(at(1));
    replica.handle_read(at(2), at(1), current(10, 7));
    assert!(!actions(&mut replica).iter().any(|action| matches!(action, Action::Fetch { .. } | Action::Switch { .. })));
    assert_eq!(replica.standing(at(3)), Standing::Fresh);
}

#[test]
fn without_current_nothing_is_taken_away() {
    let mut replica = serving(1);
    replica.handle_watched(CLUSTER, 20, None);
    replica.handle_asked(at(100));
    replica.handle_read(at(101), at(100), Read { cluster: CLUSTER, revision: 20, current: None });
    assert_eq!((actions(&mut replica), replica.trouble()), (vec![read(100)], Some("nothing is published there")));
}

const CLUSTER: u64 = 99;

fn replica(from_disk: Option<(At, String)>) -> Replica {
    Replica::new(Limits::default(), from_disk)
}

/// In force since 2 ms after the start, with nothing to be done.
fn serving(generation: u64) -> Replica {
    let mut replica = replica(None);
    replica.handle_timeout(at(0));
    replica.handle_connected(at(1));
    replica.handle_read(at(2), at(1), current(10, generation));
    replica.handle_fetched(generation, entries(generation), revisions(generation));
    actions(&mut replica);
    replica
}

fn actions(replica: &mut Replica) -> Vec<Action> {
    std::iter::from_fn(|| replica.poll_action()).collect()
}

fn at(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn read(sent: u64) -> Action {
    Action::Read { sent: at(sent) }
}

fn switch(generation: u64) -> Action {
    Action::Switch { at: At { cluster: CLUSTER, generation }, entries: entries(generation) }
}

fn current(revision: i64, generation: u64) -> Read {
    Read { cluster: CLUSTER, revision, current: Some(Current::Manifest(manifest(generation))) }
}

fn manifest(generation: u64) -> Manifest {
    Manifest::new(generation, &entries(generation))
}

fn entries(generation: u64) -> Entries {
    let entry = |name: &str| (format!("envoy.config.cluster.v3.Cluster/{name}"), Bytes::from(format!("{generation}")));
    [entry("a"), entry("b")].into_iter().collect()
}

fn revisions(generation: u64) -> Revisions {
    entries(generation).iter().map(|(key, _)| (key.to_owned(), generation as i64)).collect()
}
