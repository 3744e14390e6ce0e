use proptest::prelude::{any, proptest};

use super::*;

#[test]
fn it_lists_then_watches_from_there_kb10() {
    let mut reflector = Reflector::new();
    reflector.handle_timeout(at(0), 0.0);
    assert_eq!(actions(&mut reflector), [Action::List { attempt: 1 }]);
    assert!(!reflector.is_complete());
    reflector.handle_listed(at(1), 0.0, 1, Ok(listed(10, &[("a", 3, 30), ("b", 4, 40)])));
    assert_eq!(actions(&mut reflector), [Action::Watch { attempt: 2, from: "10".to_owned() }]);
    assert_eq!(changes(&mut reflector), [put("a", 30), put("b", 40)]);
    assert!(reflector.is_complete());
    reflector.handle_open(at(2), 2);
    assert_eq!(actions(&mut reflector), [Action::Read { sent: at(2) }]);
    reflector.handle_told(2, told_put("a", 11, 31));
    reflector.handle_told(2, Told::Gone { key: key("b"), version: "12".to_owned() });
    reflector.handle_told(2, Told::Bookmark { version: "20".to_owned() });
    assert_eq!(changes(&mut reflector), [put("a", 31), gone("b")]);
    // The span is over: it goes on from what the bookmark said.
    reflector.handle_watch_end(at(10_000), 0.0, 2, Ok(()));
    assert_eq!(actions(&mut reflector), [Action::Watch { attempt: 3, from: "20".to_owned() }]);
}

#[test]
fn gone_is_listed_anew_and_what_is_missing_then_is_gone_kb10() {
    let mut reflector = watching();
    reflector.handle_told(2, told_put("c", 11, 50));
    changes(&mut reflector);
    reflector.handle_watch_end(at(5_000), 0.0, 2, Err(Trouble::Expired));
    assert_eq!(actions(&mut reflector), [Action::List { attempt: 3 }]);
    reflector.handle_listed(at(5_001), 0.0, 3, Ok(listed(30, &[("a", 3, 30), ("c", 20, 51)])));
    assert_eq!(changes(&mut reflector), [gone("b"), put("c", 51)]);
    // Gone again without a word in between is a failure: otherwise it would list for ever.
    actions(&mut reflector);
    reflector.handle_watch_end(at(5_002), 0.0, 4, Err(Trouble::Expired));
    assert_eq!(actions(&mut reflector), [Action::Stop]);
    reflector.handle_timeout(at(10_100), 0.0);
    assert_eq!(actions(&mut reflector), [Action::List { attempt: 6 }]);
}

#[test]
fn a_failure_is_tried_again_where_it_was_after_a_pause_with_jitter_kb11() {
    let mut reflector = watching();
    let mut attempt = 2;
    for (jitter, pause) in [(0.0, 100), (1.0, 400), (0.0, 400), (0.5, 1_200), (0.0, 1_600), (1.0, 5_000), (1.0, 5_000)]
    {
        let failed = Err(Trouble::Failed("refused".to_owned()));
        reflector.handle_watch_end(at(0), jitter, attempt, failed);
        assert_eq!(actions(&mut reflector), [Action::Stop]);
        assert_eq!((reflector.deadline(), reflector.trouble()), (at(pause), Some("refused")));
        reflector.handle_timeout(at(pause), 0.0);
        attempt += 2;
        assert_eq!(actions(&mut reflector), [Action::Watch { attempt, from: "10".to_owned() }]);
    }
    // A word of the watch, and the next failure is the first.
    reflector.handle_open(at(6_000), attempt);
    reflector.handle_told(attempt, Told::Bookmark { version: "11".to_owned() });
    reflector.handle_watch_end(at(6_001), 1.0, attempt, Err(Trouble::Failed("reset".to_owned())));
    assert_eq!(reflector.deadline(), at(6_201));
}

#[test]
fn a_watch_that_ends_at_once_is_a_failure_kb11() {
    let mut reflector = watching();
    reflector.handle_watch_end(at(500), 0.0, 2, Ok(()));
    assert_eq!(actions(&mut reflector), [Action::Stop]);
    assert_eq!(reflector.trouble(), Some("the watch ended at once"));
}

#[test]
fn a_watch_without_a_sign_of_life_is_given_up_after_its_span_kb12() {
    let mut reflector = watching();
    answer(&mut reflector, at(12_000));
    assert_eq!(reflector.confirmed(), Some(at(12_000)), "until then it may be as it should");
    reflector.handle_timeout(at(13_000), 0.0);
    assert_eq!(reflector.trouble(), Some("the watch gives no sign of life"));
    // What comes from it now is too late.
    actions(&mut reflector);
    reflector.handle_told(2, told_put("a", 99, 99));
    assert_eq!(changes(&mut reflector), []);
    // Answers alone do not show that what is known is current.
    answer(&mut reflector, at(14_000));
    assert_eq!(reflector.confirmed(), Some(at(12_000)));
}

#[test]
fn it_is_current_as_of_a_question_that_was_answered_kb12() {
    let mut reflector = watching();
    assert_eq!(reflector.confirmed(), None);
    answer(&mut reflector, at(1_000));
    assert_eq!(reflector.confirmed(), Some(at(1_000)));
    // Asked while a question is under way: the answer to that is too old for whoever asked.
    reflector.handle_asked(at(2_000));
    reflector.handle_asked(at(2_500));
    assert_eq!(actions(&mut reflector), [Action::Read { sent: at(2_000) }]);
    reflector.handle_read(at(2_600), at(2_000), Ok(()));
    assert_eq!(
        (actions(&mut reflector), reflector.confirmed()),
        (vec![Action::Read { sent: at(2_600) }], Some(at(2_000)))
    );
    reflector.handle_read(at(2_700), at(2_600), Ok(()));
    assert_eq!(reflector.confirmed(), Some(at(2_600)));
    // It is asked all the time, and an answer that does not come is no answer.
    reflector.handle_timeout(at(7_600), 0.0);
    assert_eq!(actions(&mut reflector), [Action::Read { sent: at(7_600) }]);
    reflector.handle_timeout(at(12_600), 0.0);
    assert_eq!(reflector.trouble(), Some("no answer in time"));
    assert_eq!(reflector.confirmed(), Some(at(2_600)));
}

#[test]
fn what_a_watch_lost_is_found_by_the_next_list_and_counted_kb13() {
    // "b" was deleted and "c" was made, and the watch did not say so.
    for (is_told, differences) in [(false, 2), (true, 0)] {
        let mut reflector = watching();
        if is_told {
            reflector.handle_told(2, Told::Gone { key: key("b"), version: "12".to_owned() });
            reflector.handle_told(2, told_put("c", 13, 50));
        }
        reflector.handle_compared(Some(listed(15, &[("a", 3, 30), ("c", 13, 50)])));
        assert_eq!(reflector.differences(), 0, "the watch is not there yet");
        // A change after the list is no difference.
        reflector.handle_told(2, told_put("a", 16, 32));
        let all = changes(&mut reflector);
        assert_eq!(all, [gone("b"), put("c", 50), put("a", 32)]);
        assert_eq!(reflector.differences(), differences);
    }
    // A bookmark that says exactly as much will do, and one before it does not.
    let mut reflector = watching();
    reflector.handle_compared(Some(listed(15, &[("a", 3, 30)])));
    reflector.handle_told(2, Told::Bookmark { version: "14".to_owned() });
    assert_eq!(reflector.differences(), 0);
    reflector.handle_told(2, Told::Bookmark { version: "15".to_owned() });
    assert_eq!((reflector.differences(), changes(&mut reflector)), (1, vec![gone("b")]));
    // A list that is older than the watch says nothing.
    reflector.handle_compared(Some(listed(12, &[])));
    reflector.handle_told(2, Told::Bookmark { version: "20".to_owned() });
    assert_eq!((reflector.differences(), changes(&mut reflector)), (1, Vec::new()));
}

#[test]
fn everything_is_listed_again_every_ten_minutes_or_so_kb13() {
    let mut reflector = watching();
    for _ in 0..40 {
        let now = reflector.deadline();
        reflector.handle_timeout(now, 0.0);
        for action in actions(&mut reflector) {
            match action {
                Action::Read { sent } => reflector.handle_read(now, sent, Ok(())),
                Action::Compare => assert!(now >= at(450_000)),
                Action::Watch { attempt, .. } => reflector.handle_open(now, attempt),
                Action::List { .. } | Action::Stop => {}
            }
        }
    }
}

proptest! {
    /// Against a store that anything may happen to: what is known at the end is what it has, if the watch tells all of it; and
    /// if it does not, the next list has it right.
    #[test]
    fn any_history_of_lists_and_watches_ends_with_what_the_store_has_kb10(
        steps in proptest::collection::vec(any::<[u8; 3]>(), 0..80),
    ) {
        let mut reflector = Reflector::new();
        let (mut store, mut log, mut known) = (BTreeMap::<Key, (String, u64)>::new(), Vec::<(u64, Key, Option<u64>)>::new(), BTreeMap::new());
        let (mut version, mut watch, mut now) = (1_u64, None::<(u64, u64)>, Duration::ZERO);
        for [what, which, outcome] in steps.into_iter().chain([[9, 0, 0]; 30]) {
            now += Duration::from_millis(1_500);
            let name = key(["a", "b", "c", "d"][usize::from(which % 4)]);
            match what % 10 {
                0..=2 => {
                    version += 1;
                    store.insert(name.clone(), (version.to_string(), version));
                    log.push((version, name, Some(version)));
                }
                3 => {
                    version += 1;
                    if store.remove(&name).is_some() {
                        log.push((version, name, None));
                    }
                }
                4 => if let Some((attempt, _)) = watch.take() {
                    let end = [Ok(()), Err(Trouble::Expired), Err(Trouble::Failed("x".to_owned()))][usize::from(outcome % 3)].clone();
                    reflector.handle_watch_end(now, 0.5, attempt, end);
                },
                5 => reflector.handle_compared(Some(as_of(version, &store))),
                _ => {}
            }
            reflector.handle_timeout(now, 0.5);
            while let Some(action) = reflector.poll_action() {
                match action {
                    Action::List { attempt } if outcome % 5 == 1 => {
                        reflector.handle_listed(now, 0.5, attempt, Err(Trouble::Failed("x".to_owned())));
                    }
                    Action::List { attempt } => reflector.handle_listed(now, 0.5, attempt, Ok(as_of(version, &store))),
                    Action::Watch { attempt, from } => {
                        watch = Some((attempt, from.parse().expect("a number")));
                        reflector.handle_open(now, attempt);
                    }
                    Action::Stop => watch = None,
                    Action::Compare => reflector.handle_compared(Some(as_of(version, &store))),
                    Action::Read { sent } => reflector.handle_read(now, sent, Ok(())),
                }
            }
            // The watch is told some of what is new, and sometimes how far it is.
            if let Some((attempt, from)) = &mut watch {
                let limit = if what == 9 { usize::MAX } else { usize::from(outcome % 3) };
                let begin = *from;
                for (at, key, value) in log.iter().filter(|(at, _, _)| *at > begin).take(limit) {
                    let (key, version) = (key.clone(), at.to_string());
                    reflector.handle_told(*attempt, match value {
                        Some(value) => Told::Put { key, version, value: *value },
                        None => Told::Gone { key, version },
                    });
                    *from = *at;
                }
                if limit > 2 {
                    *from = version;
                    reflector.handle_told(*attempt, Told::Bookmark { version: version.to_string() });
                }
            }
            while let Some(Change { key, value }) = reflector.poll_change() {
                match value {
                    Some(value) => drop(known.insert(key, value)),
                    None => assert!(known.remove(&key).is_some(), "what is not known cannot go"),
                }
            }
        }
        let truth: BTreeMap<_, _> = store.into_iter().map(|(key, (_, value))| (key, value)).collect();
        assert_eq!(known, truth);
        assert_eq!(reflector.differences(), 0, "the watch told all of it");
    }
}

fn as_of(version: u64, store: &BTreeMap<Key, (String, u64)>) -> Listed<u64> {
    Listed { version: version.to_string(), items: store.clone() }
}

/// Watching from 10, with "a" and "b", since 0.
fn watching() -> Reflector<u64> {
    let mut reflector = Reflector::new();
    reflector.handle_timeout(at(0), 0.0);
    reflector.handle_listed(at(0), 0.0, 1, Ok(listed(10, &[("a", 3, 30), ("b", 4, 40)])));
    reflector.handle_open(at(0), 2);
    actions(&mut reflector);
    changes(&mut reflector);
    reflector.handle_read(at(0), at(0), Err(Trouble::Failed("not yet".to_owned())));
    reflector
}

/// A question is asked and answered.
fn answer(reflector: &mut Reflector<u64>, now: Duration) {
    reflector.handle_asked(now);
    for action in actions(reflector) {
        if let Action::Read { sent } = action {
            reflector.handle_read(now, sent, Ok(()));
        }
    }
}

fn listed(version: u64, items: &[(&str, u64, u64)]) -> Listed<u64> {
    let items = items.iter().map(|(name, version, value)| (key(name), (version.to_string(), *value)));
    Listed { version: version.to_string(), items: items.collect() }
}

fn told_put(name: &str, version: u64, value: u64) -> Told<u64> {
    Told::Put { key: key(name), version: version.to_string(), value }
}

fn put(name: &str, value: u64) -> Change<u64> {
    Change { key: key(name), value: Some(value) }
}

fn gone(name: &str) -> Change<u64> {
    Change { key: key(name), value: None }
}

fn key(name: &str) -> Key {
    Key::new("n", name)
}

fn actions(reflector: &mut Reflector<u64>) -> Vec<Action> {
    std::iter::from_fn(|| reflector.poll_action()).collect()
}

fn changes(reflector: &mut Reflector<u64>) -> Vec<Change<u64>> {
    std::iter::from_fn(|| reflector.poll_change()).collect()
}

fn at(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}
