//! When a configuration is whole, and of what it is made (FB-4).

use super::*;

/// The resources that the configuration in force is made of.
fn whole(bed: &Testbed) -> Option<String> {
    let resources = bed.manager.whole()?;
    let texts: Vec<_> = resources.iter().map(|key| format!("{} {}", service(key.resource_type), key.name)).collect();
    Some(texts.join(", "))
}

#[test]
fn it_is_made_of_everything_that_the_routes_in_force_lead_to() {
    let mut bed = Testbed::new();
    assert_eq!(whole(&bed), None);
    bed.rds("r");
    bed.routes("r", &["a", "agg"]);
    bed.eds("a");
    bed.endpoints_in("a", &["list"]);
    bed.aggregate("agg", &["b", "dns"]);
    bed.eds_named("b", "b-endpoints");
    bed.endpoints("b-endpoints", &[1]);
    bed.logical_dns("dns", "host");
    bed.answer("host", Ok(&[5]));
    assert_eq!(whole(&bed), None); // the list is missing
    bed.collection("list", &[2]);
    let expected = "LDS l, RDS r, CDS a, CDS agg, CDS b, CDS dns, EDS a, EDS b-endpoints, LEDS list";
    assert_eq!(whole(&bed).as_deref(), Some(expected));
}

#[test]
fn while_something_newer_waits_nothing_is_whole() {
    let mut bed = Testbed::serving(&["a"]);
    assert_eq!(whole(&bed).as_deref(), Some("LDS l, CDS a, EDS a"));
    // New routes whose cluster is awaited: what is known of the Listener is not what is in force.
    bed.inline(&["a", "b"]);
    assert_eq!(whole(&bed), None);
    bed.eds("b");
    assert_eq!(whole(&bed), None);
    bed.endpoints("b", &[2]);
    assert_eq!(whole(&bed).as_deref(), Some("LDS l, CDS a, CDS b, EDS a, EDS b"));
    // A Listener whose routes are awaited.
    bed.rds("r");
    assert_eq!(whole(&bed), None);
    bed.routes("r", &["a"]);
    assert_eq!(whole(&bed).as_deref(), Some("LDS l, RDS r, CDS a, EDS a"));
    // A cluster that moves to other endpoints.
    bed.eds_named("a", "elsewhere");
    assert_eq!(whole(&bed), None);
    bed.endpoints("elsewhere", &[3]);
    assert_eq!(whole(&bed).as_deref(), Some("LDS l, RDS r, CDS a, EDS elsewhere"));
}

#[test]
fn a_mixture_of_servers_is_never_whole() {
    let mut bed = Testbed::new();
    bed.switch("A");
    bed.inline(&["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    assert!(whole(&bed).is_some());
    bed.switch("B");
    bed.confirmed(LDS, "l");
    assert_eq!(whole(&bed), None);
    bed.endpoints("a", &[2]);
    bed.pass(seconds(20));
    assert!(bed.config().mixed_sources);
    assert_eq!(whole(&bed), None);
    bed.confirmed(CDS, "a");
    assert!(whole(&bed).is_some());
}

#[test]
fn what_servers_say_does_not_exist_is_known_and_what_they_cannot_say_is_not() {
    let mut bed = Testbed::routed(&["a", "b"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.fail(CDS, "b");
    assert!(bed.config().clusters["b"].is_err()); // in force, for want of anything better
    assert_eq!(whole(&bed), None);
    bed.deny(CDS, "b");
    assert_eq!(whole(&bed).as_deref(), Some("LDS l, CDS a, CDS b, EDS a"));
    bed.deny(LDS, "l");
    assert_eq!(whole(&bed), None); // nothing is in force
}

#[test]
fn what_only_rpcs_hold_on_to_is_not_a_part_of_it() {
    let mut bed = Testbed::serving(&["a", "b"]);
    bed.subscribe("b");
    bed.inline(&["a"]);
    assert!(bed.config().clusters.contains_key("b"));
    assert_eq!(whole(&bed).as_deref(), Some("LDS l, CDS a, EDS a"));
}
