//! Aggregate clusters (A37, L-20).

use super::*;
use crate::deps::ClusterErrorKind;

#[test]
fn an_aggregate_waits_for_all_its_leaves() {
    // L-7, L-10; Go: AggregateCluster; Java: simple aggregate.
    let mut bed = Testbed::routed(&["agg"]);
    bed.aggregate("agg", &["a", "d"]);
    assert_eq!(bed.take(), "+CDS a +CDS d");
    bed.eds("a");
    bed.logical_dns("d", "host");
    assert_eq!(bed.take(), "+EDS a ?host:80");
    bed.endpoints("a", &[1]);
    assert_eq!(bed.take(), "");
    bed.answer("host", Ok(&[2, 3]));
    assert_eq!(bed.take(), "{a=1 agg>a,d d=2,3}");
}

#[test]
fn nested_aggregates_list_their_leaves_depth_first() {
    // The example of A37; Java: complex registered aggregate.
    let mut bed = Testbed::routed(&["A"]);
    bed.aggregate("A", &["B", "C"]);
    bed.aggregate("C", &["D", "E"]);
    for (leaf, port) in [("D", 2), ("B", 1), ("E", 3)] {
        bed.eds(leaf);
        bed.endpoints(leaf, &[port]);
    }
    assert!(bed.take().ends_with("{A>B,D,E B=1 C>D,E D=2 E=3}"));
}

#[test]
fn a_leaf_counts_for_every_root_that_lists_it() {
    // D9.
    let mut bed = Testbed::routed(&["a", "agg1", "agg2", "agg3"]);
    bed.aggregate("agg1", &["a"]);
    bed.aggregate("agg2", &["a", "b"]);
    bed.aggregate("agg3", &["agg1", "agg2"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.eds("b");
    bed.endpoints("b", &[2]);
    assert!(bed.take().ends_with("{a=1 agg1>a agg2>a,b agg3>a,b b=2}"));
}

#[test]
fn a_diamond_lists_its_leaf_once_and_every_corner_has_its_own_list() {
    // grpc-go defect 7; Go: DiamondDependency.
    let mut bed = Testbed::routed(&["A", "C"]);
    bed.aggregate("A", &["B", "C"]);
    bed.aggregate("B", &["D"]);
    bed.aggregate("C", &["D"]);
    bed.eds("D");
    bed.endpoints("D", &[1]);
    assert!(bed.take().ends_with("{A>D B>D C>D D=1}"));
}

#[test]
fn a_repeated_leaf_keeps_its_first_position() {
    // A37; Go: IgnoreDups.
    let mut bed = Testbed::routed(&["A"]);
    bed.aggregate("A", &["B", "C", "D", "C"]);
    bed.aggregate("B", &["C", "D"]);
    for leaf in ["C", "D"] {
        bed.eds(leaf);
        bed.endpoints(leaf, &[1]);
    }
    assert!(bed.take().ends_with("{A>C,D B>C,D C=1 D=1}"));
}

#[test]
fn a_missing_child_is_skipped_and_noted() {
    // L-20 as decided, grpc-go defect 8; Go: AggregateClusterChildError.
    let mut bed = Testbed::routed(&["agg"]);
    bed.aggregate("agg", &["x", "a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.take();
    bed.fail(CDS, "x");
    assert_eq!(bed.take(), "{a=1 agg>a x!}");
    assert!(bed.note("agg").contains("Cluster \"x\""), "{}", bed.note("agg"));
    bed.eds("x");
    bed.endpoints("x", &[2]);
    assert_eq!(bed.take(), "+EDS x {a=1 agg>x,a x=2}");
    assert_eq!(bed.note("agg"), "xDS node ID:node-1");
}

#[test]
fn an_aggregate_without_leaves_fails_and_names_the_missing() {
    // L-20; Go: AggregateClusterNoLeafCluster.
    let mut bed = Testbed::routed(&["agg", "b"]);
    bed.aggregate("agg", &["x", "y"]);
    bed.eds("b");
    bed.endpoints("b", &[1]);
    bed.fail(CDS, "x");
    bed.fail(CDS, "y");
    assert!(bed.take().ends_with("{agg! b=1 x! y!}"));
    let text = bed.cluster_error("agg").to_string();
    assert!(text.contains("\"agg\" has no leaf clusters"), "{text}");
    assert!(text.find("\"x\"") < text.find("\"y\"") && text.contains("\"x\""), "{text}");
    bed.eds("y");
    bed.endpoints("y", &[2]);
    assert!(bed.take().ends_with("{agg>y b=1 x! y=2}"));
}

#[test]
fn loops_end_where_they_began() {
    // L-20; Go: NodeChildOfItself, CycleWithNoLeafNode, CycleWithLeafNode.
    let mut bed = Testbed::routed(&["A"]);
    bed.aggregate("A", &["A"]);
    assert_eq!(bed.take(), "{A!}");
    assert_eq!(bed.cluster_error("A").to_string(), "aggregate Cluster \"A\" has no leaf clusters");
    bed.aggregate("A", &["B"]);
    bed.aggregate("B", &["A"]);
    assert_eq!(bed.take(), "+CDS B {A! B!}");
    bed.aggregate("B", &["A", "C"]);
    bed.eds("C");
    bed.endpoints("C", &[1]);
    assert_eq!(bed.take(), "+CDS C +EDS C {A>C B>C C=1}");
}

#[test]
fn a_loop_is_complete_when_the_last_leaf_below_it_is() {
    // Each member waits for what is below the others.
    let mut bed = Testbed::routed(&["B"]);
    bed.aggregate("B", &["A"]);
    bed.aggregate("A", &["x", "B"]);
    bed.eds("x"); // another kind of waiting
    bed.logical_dns("x", "192.0.2.1");
    assert!(bed.take().ends_with("{A>x B>x x=80} -EDS x"), "{:?}", bed.config);
}

#[test]
fn a_loop_that_nobody_needs_is_dropped() {
    // L-9; Java: CDS cycle reclaimed.
    let mut bed = Testbed::routed(&["A"]);
    bed.aggregate("A", &["B"]);
    bed.aggregate("B", &["C", "A"]);
    bed.eds("C");
    bed.endpoints("C", &[1]);
    bed.take();
    bed.inline(&[]);
    assert_eq!(bed.take(), "{} -CDS A -CDS B -CDS C -EDS C");
}

#[test]
fn sixteen_clusters_may_be_nested_and_seventeen_may_not() {
    // A37, L-20; Go: AggregateClusterMaxDepth, ExceedsMaxStackDepth.
    let mut bed = Testbed::routed(&["c1"]);
    for depth in 1..16 {
        bed.aggregate(&format!("c{depth}"), &[&format!("c{}", depth + 1)]);
    }
    bed.eds("c16");
    bed.endpoints("c16", &[1]);
    assert!(bed.take().contains("{c1>c16 "));

    bed.aggregate("c16", &["c17"]);
    assert!(bed.take().contains("{c1! "));
    assert_eq!(bed.cluster_error("c1").kind, ClusterErrorKind::TooDeep);
    assert!(bed.cluster_error("c1").to_string().contains("more than 16 deep"));
    // Nothing below the limit is followed, so a chain without an end costs nothing.
    assert_eq!(bed.watched.iter().filter(|key| key.resource_type == CDS).count(), 16);

    bed.eds("c16"); // and recovers
    bed.endpoints("c16", &[2]);
    assert!(bed.take().contains("{c1>c16 "));
}

#[test]
fn a_cluster_too_deep_for_one_root_serves_another() {
    let mut bed = Testbed::routed(&["c1", "c2"]);
    for depth in 1..17 {
        bed.aggregate(&format!("c{depth}"), &[&format!("c{}", depth + 1)]);
    }
    bed.eds("c17");
    bed.endpoints("c17", &[1]);
    bed.take();
    assert_eq!(bed.cluster_error("c1").kind, ClusterErrorKind::TooDeep);
    assert_eq!(bed.cluster_config("c2").children, ClusterChildren::Aggregate(vec!["c17".into()]));
    bed.inline(&["c1"]); // now nobody reaches c17
    assert_eq!(bed.cluster_error("c2").kind, ClusterErrorKind::TooDeep);
    assert!(bed.take().ends_with("-CDS c17 -EDS c17"));
}

#[test]
fn whether_clusters_are_nested_too_deep_does_not_depend_on_the_order_of_children() {
    // A37: the longest chain counts, wherever it stands.
    for (chain, too_deep) in [(14, false), (15, true)] {
        for children in [["g1", "leaf"], ["leaf", "g1"]] {
            let mut bed = Testbed::routed(&["g0"]);
            bed.aggregate("g0", &children);
            for n in 1..chain {
                bed.aggregate(&format!("g{n}"), &[&format!("g{}", n + 1)]);
            }
            bed.aggregate(&format!("g{chain}"), &["leaf"]);
            bed.eds("leaf");
            bed.endpoints("leaf", &[1]);
            assert_eq!(bed.config().clusters["g0"].is_err(), too_deep, "{children:?} with {chain}");
        }
    }
}

#[test]
fn a_loop_counts_with_all_its_members() {
    // A37: a limit that holds for every order, and that bounds the work a loop can cause.
    for (members, too_deep) in [(15, false), (16, true), (40, true)] {
        let names: Vec<String> = (0..members).map(|n| format!("g{n}")).collect();
        let mut bed = Testbed::routed(&["g0"]);
        let all: Vec<&str> = names.iter().map(String::as_str).chain(["leaf"]).collect();
        bed.together(|bed| bed.aggregate("g0", &all));
        bed.together(|bed| names.iter().for_each(|name| bed.aggregate(name, &all)));
        bed.eds("leaf");
        bed.endpoints("leaf", &[1]);
        for name in &names {
            let result = &bed.config().clusters[name.as_str()];
            assert_eq!(result.is_err(), too_deep, "{name} of {members}: {result:?}");
        }
    }
}

/// Promise 1: what is below it may come yet, and be something else.
#[test]
fn a_loop_that_is_too_long_waits_for_what_is_below_it_like_any_other() {
    let mut bed = Testbed::serving(&["g0", "g8"]);
    bed.together(|bed| {
        for n in 0..16 {
            bed.aggregate(&format!("g{n}"), &[&format!("g{}", n + 1)]);
        }
    });
    for n in 1..16 {
        bed.aggregate(&format!("g{n}"), &[&format!("g{}", n + 1)]);
    }
    bed.aggregate("g16", &["g0", "new"]);
    let told = bed.take();
    assert!(told.contains("+CDS new") && !told.contains('{'), "{told:?}");
    bed.deny(CDS, "new");
    assert_eq!(bed.cluster_error("g0").kind, ClusterErrorKind::TooDeep);
}

#[test]
fn two_spellings_of_one_cluster_are_one_leaf() {
    // A37, P-84: the name in the first place counts.
    let cluster = "xdstp://x/envoy.config.cluster.v3.Cluster/c";
    let (one, other) = (format!("{cluster}?a=1&b=2"), format!("{cluster}?b=2&a=1"));
    let mut bed = Testbed::routed(&["agg", "top"]);
    bed.aggregate("agg", &[&other, &one]);
    bed.aggregate("top", &[&one, "agg"]);
    bed.eds_named(&one, "e");
    bed.endpoints("e", &[1]);
    let leaves = |name| bed.cluster_config(name).children.clone();
    assert_eq!(leaves("agg"), ClusterChildren::Aggregate(vec![other.as_str().into()]));
    assert_eq!(leaves("top"), ClusterChildren::Aggregate(vec![one.as_str().into()]));
}

#[test]
fn a_changed_list_changes_watches_and_leaves() {
    // L-9; Java: change aggregate; Go: ThenUpdateChildClusters.
    let mut bed = Testbed::routed(&["agg"]);
    bed.aggregate("agg", &["a", "b"]);
    for leaf in ["a", "b"] {
        bed.eds(leaf);
        bed.endpoints(leaf, &[1]);
    }
    bed.take();
    let a = bed.cluster_config("a").clone();
    bed.aggregate("agg", &["b", "a"]);
    assert_eq!(bed.take(), "{a=1 agg>b,a b=1}");
    assert!(Arc::ptr_eq(&a, bed.cluster_config("a")));
    bed.aggregate("agg", &["b", "c"]);
    assert_eq!(bed.take(), "+CDS c");
    bed.eds("c");
    bed.endpoints("c", &[3]);
    assert_eq!(bed.take(), "+EDS c {agg>b,c b=1 c=3} -CDS a -EDS a");
}

#[test]
fn a_cluster_may_change_between_leaf_and_aggregate() {
    // D17; Go: SwitchBetweenLeafAndAggregate, ThenChangeRootToEDS.
    let mut bed = Testbed::serving(&["a"]);
    bed.aggregate("a", &["b"]);
    assert_eq!(bed.take(), "+CDS b");
    bed.eds("b");
    bed.endpoints("b", &[2]);
    assert_eq!(bed.take(), "+EDS b {a>b b=2} -EDS a");
    bed.eds("a");
    assert_eq!(bed.take(), "+EDS a");
    bed.endpoints("a", &[3]);
    assert_eq!(bed.take(), "{a=3} -CDS b -EDS b");
}

#[test]
fn endpoints_of_a_leaf_leave_the_aggregate_alone() {
    // Cost follows change.
    let mut bed = Testbed::routed(&["agg"]);
    bed.aggregate("agg", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    let agg = bed.cluster_config("agg").clone();
    bed.take();
    bed.endpoints("a", &[2]);
    assert_eq!(bed.take(), "{a=2 agg>a}");
    assert!(Arc::ptr_eq(&agg, bed.cluster_config("agg")));
}

#[test]
fn a_subtree_with_several_parents_stays_as_long_as_one_needs_it() {
    // Java: multiple parents in CDS tree; add and close subscriptions leave the configuration equal.
    let mut bed = Testbed::routed(&["A"]);
    bed.aggregate("A", &["B", "C"]);
    bed.aggregate("B", &["D"]);
    bed.aggregate("C", &["D"]);
    bed.eds("D");
    bed.endpoints("D", &[1]);
    let before = bed.config().clone();
    bed.take();
    for cluster in ["A", "B", "D"] {
        bed.subscribe(cluster);
    }
    for cluster in ["D", "A", "B"] {
        bed.release(cluster);
    }
    assert_eq!(bed.take(), "");
    bed.aggregate("A", &["C"]);
    assert_eq!(bed.take(), "{A>D C>D D=1} -CDS B");
    bed.aggregate("A", &["B", "C"]);
    bed.aggregate("B", &["D"]);
    assert_eq!(bed.take(), "+CDS B {A>D B>D C>D D=1}");
    assert_eq!(before, *bed.config());
}

#[test]
fn a_complex_tree_moves_to_new_routes_as_a_whole() {
    // L-4, L-10; Java: change RDS name with complex tree.
    let mut bed = Testbed::new();
    bed.rds("r1");
    bed.routes("r1", &["root"]);
    bed.aggregate("root", &["mid", "a"]);
    bed.aggregate("mid", &["a", "b"]);
    for (leaf, port) in [("a", 1), ("b", 2)] {
        bed.eds(leaf);
        bed.endpoints(leaf, &[port]);
    }
    bed.take();
    bed.rds("r2");
    bed.routes("r2", &["mid", "c"]);
    assert_eq!(bed.take(), "+RDS r2 +CDS c");
    bed.endpoints("a", &[9]);
    assert_eq!(bed.take(), "{a=9 b=2 mid>a,b root>a,b}"); // the tree before, as a whole
    bed.eds("c");
    bed.endpoints("c", &[3]);
    assert_eq!(bed.take(), "+EDS c {a=9 b=2 c=3 mid>a,b} -RDS r1 -CDS root");
}

#[test]
fn a_subscribed_aggregate_appears_with_its_leaves_or_not_at_all() {
    // L-17, L-10.
    let mut bed = Testbed::serving(&["a"]);
    bed.subscribe("agg");
    bed.aggregate("agg", &["b", "a"]);
    bed.eds("b");
    bed.endpoints("a", &[2]);
    assert_eq!(bed.take(), "+CDS agg +CDS b +EDS b {a=2}");
    bed.endpoints("b", &[3]);
    assert_eq!(bed.take(), "{a=2 agg>b,a b=3}");
}

#[test]
fn a_subscribed_aggregate_keeps_its_old_leaves_until_the_new_ones_are_there() {
    // L-17: no list names a cluster that is not there.
    let mut bed = Testbed::serving(&["a"]);
    bed.subscribe("agg");
    bed.aggregate("agg", &["b"]);
    bed.eds("b");
    bed.endpoints("b", &[2]);
    bed.take();
    bed.aggregate("agg", &["c"]);
    bed.endpoints("a", &[5]);
    bed.endpoints("a", &[6]);
    assert_eq!(bed.take(), "+CDS c {a=5 agg>b b=2} {a=6 agg>b b=2}");
    bed.eds("c");
    bed.endpoints("c", &[3]);
    assert_eq!(bed.take(), "+EDS c {a=6 agg>c c=3} -CDS b -EDS b");
}

/// What an aggregate holds on to while a new list is awaited goes with the aggregate.
#[test]
fn an_aggregate_that_goes_while_it_waits_leaves_nothing_watched() {
    let mut bed = Testbed::new();
    bed.inline(&["both"]);
    bed.aggregate("both", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.aggregate("both", &["b"]); // The list with a stays in use until b is there.
    bed.manager.shut_down(bed.now);
    bed.settle();
    assert!(bed.watched.is_empty(), "{:?}", bed.watched);
}

/// The same when new routes take its place.
#[test]
fn an_aggregate_that_is_replaced_while_it_waits_leaves_nothing_watched() {
    let mut bed = Testbed::new();
    bed.inline(&["both"]);
    bed.aggregate("both", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.aggregate("both", &["b"]);
    bed.inline(&["c"]);
    bed.eds("c");
    bed.endpoints("c", &[2]);
    let left: Vec<_> = bed
        .watched
        .iter()
        .map(ToString::to_string)
        .filter(|key| key.contains("\"a\"") || key.contains("\"b\""))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
