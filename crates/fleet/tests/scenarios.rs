//! The scenarios with few clients, and what they must show.

use std::time::Duration;

use mainstay_control_plane::Limits;
use mainstay_fleet::{Plan, Report, Rules, SCENARIOS, Scenario, run};

const CLIENTS: u32 = 200;

#[test]
fn every_scenario_ends_well_by_our_rules_sc20() {
    for scenario in SCENARIOS {
        let report = run(&plan(scenario.name));
        assert_eq!(report.violations, Vec::<String>::new(), "{}: {}", scenario.name, scenario.title);
        assert_eq!(report.configured.count, CLIENTS as usize, "{}", scenario.name);
    }
}

#[test]
fn the_same_seed_is_the_same_run_sc18() {
    let one = |seed| run(&Plan { seed, follow: Some(7), ..plan("F2") });
    assert_eq!(one(1), one(1));
    assert_ne!(one(1).planes, one(2).planes);
    assert!(one(1).transcript.iter().any(|line| line.contains("is unreachable")), "{:?}", one(1).transcript);
}

#[test]
fn a_hand_over_is_spread_by_our_rules_and_not_by_those_of_peers_sc7_sc22() {
    let ours = run(&plan("F1"));
    let theirs = run(&Plan { rules: Rules::Peers, ..plan("F1") });
    assert_eq!(theirs.peak_opens(1), CLIENTS, "all in one moment");
    // Two seconds have twenty moments; chance may put a few more into one of them.
    assert!(ours.peak_opens(1) <= CLIENTS / 20 * 3, "{}", ours.peak_opens(1));
    assert!(ours.back.max <= Duration::from_millis(2100), "{:?}", ours.back);
}

#[test]
fn who_lacks_nothing_leaves_the_fallback_alone_sc1() {
    for name in ["F2", "F3"] {
        for seconds in [1, 3, 30] {
            let report = run(&Plan { outage: Duration::from_secs(seconds), ..plan(name) });
            assert_eq!(report.violations, Vec::<String>::new(), "{name} for {seconds} s");
            assert_eq!((report.planes[1].met_by, report.failed), (0, 0), "{name} for {seconds} s");
        }
    }
}

#[test]
fn who_is_caught_in_an_update_is_served_by_the_fallback_in_time() {
    let report = run(&plan("F4"));
    assert_eq!((report.updated.count, report.planes[1].met_by), (CLIENTS as usize, CLIENTS));
    assert!(report.updated.max <= Duration::from_secs(3), "{:?}", report.updated);
}

#[test]
fn with_files_a_start_in_an_outage_takes_milliseconds() {
    let report = run(&plan("F5L"));
    assert!(report.configured.max <= Duration::from_millis(50), "{:?}", report.configured);
    assert_eq!(report.planes[0].met_by, CLIENTS, "and all move to the control plane when it is back");
}

#[test]
fn a_bad_configuration_is_rejected_and_costs_nothing() {
    let report = run(&plan("F8"));
    assert!(report.nacks >= CLIENTS, "{}", report.nacks);
    assert_eq!(report.fallbacks, 0);
}

#[test]
fn judges_find_what_they_are_for() {
    // A server that lets nobody in.
    let closed = Limits { streams_per_second: 1, stream_burst: 1, longest_wait: Duration::ZERO, ..Limits::default() };
    let report = run(&Plan { limits: closed, ..plan("F5") });
    let found = |report: &Report, what: &str| report.violations.iter().any(|violation| violation.contains(what));
    assert!(found(&report, "refused more than 5 times in a row"), "{:?}", report.violations);
    assert!(found(&report, "never served"), "{:?}", report.violations);
    // Twenty seconds for connecting to a fallback that is as dead as the primary is too long for three.
    let late = run(&Plan {
        limits: Limits {
            push_back: (Duration::from_secs(9), Duration::from_secs(10)),
            stream_burst: 10,
            streams_per_second: 10,
            ..Limits::default()
        },
        ..plan("F4")
    });
    assert!(found(&late, "had the last edition more than 3s after"), "{:?}", late.violations);
}

#[test]
fn what_was_counted_can_be_drawn_and_read_by_programs() {
    let report = run(&plan("F1"));
    let csv = report.csv();
    assert!(csv.starts_with("seconds,plane,opens,refusals,answers,bytes,queue_us\n"));
    let opens: u32 = csv.lines().skip(1).filter_map(|line| line.split(',').nth(2)?.parse::<u32>().ok()).sum();
    let counted: u32 = report.planes.iter().flat_map(|plane| &plane.moments.0).map(|seen| seen.opens).sum();
    assert_eq!(opens, counted);
    let svg = mainstay_fleet::svg(&report);
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && svg.contains("class=\"opens\""));
}

fn plan(name: &str) -> Plan {
    let scenario = Scenario::find(name).expect("there is one of that name");
    Plan { clients: CLIENTS, ..Plan::new(scenario) }
}
