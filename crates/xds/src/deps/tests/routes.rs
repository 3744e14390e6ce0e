//! Listener and routes.

use super::*;

#[test]
fn nothing_is_published_before_every_part_is_there() {
    // L-3, L-7, L-10; Go: HappyCase, NoRouteConfigResource; Java: basic config.
    let mut bed = Testbed::new();
    bed.rds("r");
    assert_eq!(bed.take(), "+RDS r");
    bed.routes("r", &["a", "b"]);
    assert_eq!(bed.take(), "+CDS a +CDS b");
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.eds("b");
    assert_eq!(bed.take(), "+EDS a +EDS b");
    bed.endpoints("b", &[2]);
    assert_eq!(bed.take(), "{a=1 b=2}");
    assert_eq!(bed.note("a"), "xDS node ID:node-1"); // L-19
}

#[test]
fn inline_routes_need_no_watch() {
    // L-4, L-22; Go: InlineRouteConfig.
    let mut bed = Testbed::new();
    bed.inline(&["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    assert_eq!(bed.take(), "+CDS a +EDS a {a=1}");
    let config = bed.config();
    assert!(matches!(&config.listener.routes, RouteSource::Inline(routes) if *routes == config.route_config));
    assert_eq!(config.virtual_host, config.route_config.virtual_hosts[0]);
}

#[test]
fn a_listener_that_cannot_be_had_fails_the_channel_and_recovers_from_what_is_held() {
    // L-11, L-13, L-29; Go: ListenerResourceNotFoundError; Java: missing LDS, corrupt LDS.
    let mut bed = Testbed::serving(&["a"]);
    bed.fail(LDS, "l");
    assert_eq!(bed.take(), "error LDS l");
    let text = bed.config_error();
    assert!(text.contains("\"l\"") && text.contains("A:443") && text.contains("cable cut"), "{text}");
    // Updates meanwhile are taken in, and do not bring the old configuration back.
    bed.endpoints("a", &[2]);
    assert_eq!(bed.take(), "");
    bed.inline(&["a"]);
    assert_eq!(bed.take(), "{a=2}");
}

#[test]
fn the_same_configuration_is_published_again_after_an_error() {
    // L-29.
    let mut bed = Testbed::serving(&["a"]);
    let before = bed.config().clone();
    bed.fail(LDS, "l");
    bed.inline(&["a"]);
    assert_eq!(bed.take(), "error LDS l {a=1}");
    assert!(Arc::ptr_eq(&before, bed.config()));
}

#[test]
fn a_dropped_configuration_does_not_come_back_while_new_routes_are_awaited() {
    // L-11: after the error the old pair must not be used.
    let mut bed = Testbed::serving(&["a"]);
    bed.fail(LDS, "l");
    bed.rds("r");
    bed.endpoints("a", &[2]);
    assert_eq!(bed.take(), "error LDS l +RDS r");
    bed.routes("r", &["a"]);
    assert_eq!(bed.take(), "{a=2}");
}

#[test]
fn routes_that_cannot_be_had_fail_the_channel() {
    // L-11; Go: RouteConfigResourceError; Java: missing RDS.
    let mut bed = Testbed::new();
    bed.rds("r");
    bed.fail(RDS, "r");
    assert_eq!(bed.take(), "+RDS r error RDS r");
    bed.routes("r", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    assert_eq!(bed.take(), "+CDS a +EDS a {a=1}");
    bed.fail(RDS, "r");
    assert_eq!(bed.take(), "error RDS r");
}

#[test]
fn a_listener_for_servers_fails_the_channel() {
    // L-11, R-14; Java: TCP listener errors.
    let mut bed = Testbed::serving(&["a"]);
    bed.changed("l", server_listener());
    assert_eq!(bed.take(), "error server listener l");
    assert_eq!(bed.config_error(), "Listener \"l\" is for servers: expected an API listener");
    bed.inline(&["a"]);
    assert_eq!(bed.take(), "{a=1}");
}

#[test]
fn routes_without_a_virtual_host_for_us_fail_the_channel() {
    // L-11; Go: NoVirtualHost, NoVirtualHost_ExistingResource; Java: update to missing vhost.
    let mut bed = Testbed::new();
    bed.rds("r");
    bed.changed("r", Resource::RouteConfig(routes("other", &["a"])));
    assert_eq!(bed.take(), "+RDS r error svc in r");
    assert_eq!(bed.config_error(), "RouteConfiguration \"r\" has no virtual host for \"svc\"");
    bed.routes("r", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    assert_eq!(bed.take(), "+CDS a +EDS a {a=1}");
    bed.changed("r", Resource::RouteConfig(routes("other", &["a"])));
    assert_eq!(bed.take(), "error svc in r");
    bed.changed("l", Resource::Listener(Arc::new(Listener::Api(hcm(RouteSource::Inline(routes("other", &[])))))));
    assert_eq!(bed.take(), "error svc in l -RDS r");
}

#[test]
fn changed_routes_wait_for_their_clusters() {
    // L-4, L-9, P-96; Go: RouteResourceUpdate; Java: config update.
    let mut bed = Testbed::serving(&["a"]);
    bed.inline(&["b"]);
    assert_eq!(bed.take(), "+CDS b");
    bed.eds("b");
    assert_eq!(bed.take(), "+EDS b");
    assert!(bed.config().clusters.contains_key("a")); // still in force
    bed.endpoints("b", &[2]);
    assert_eq!(bed.take(), "{b=2} -CDS a -EDS a");
}

#[test]
fn routes_move_from_rds_to_inline_and_back() {
    // L-4; Go: RouteResourceChangeToInline.
    let mut bed = Testbed::new();
    bed.rds("r");
    bed.routes("r", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.take();
    bed.inline(&["a"]);
    assert_eq!(bed.take(), "{a=1} -RDS r");
    bed.rds("r");
    assert_eq!(bed.take(), "+RDS r");
    bed.routes("r", &["a"]);
    assert_eq!(bed.take(), "{a=1}");
}

#[test]
fn a_new_listener_is_never_published_with_old_routes() {
    // D15, L-4; Java: change RDS name.
    let mut bed = Testbed::new();
    bed.rds("r1");
    bed.routes("r1", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    let old = bed.config().clone();
    bed.take();

    bed.rds("r2");
    assert_eq!(bed.take(), "+RDS r2"); // P-96: the new watch first
    bed.endpoints("a", &[2]);
    assert_eq!(bed.take(), "{a=2}"); // the pair before: an old listener with its own routes
    assert!(Arc::ptr_eq(&old.listener, &bed.config().listener));
    assert!(Arc::ptr_eq(&old.route_config, &bed.config().route_config));

    bed.routes("r2", &["a", "b"]);
    bed.eds("b");
    bed.endpoints("b", &[3]);
    assert_eq!(bed.take(), "+CDS b +EDS b {a=2 b=3} -RDS r1");
    assert_eq!(bed.config().listener.routes, RouteSource::Rds("r2".to_owned()));
    assert_eq!(bed.config().virtual_host.routes.len(), 2);
}

#[test]
fn news_of_an_earlier_route_configuration_is_ignored() {
    // D14, grpc-go defect 6, L-5.
    let mut bed = Testbed::new();
    bed.rds("r1");
    bed.routes("r1", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.rds("r2");
    bed.take();
    bed.fail(RDS, "r1");
    bed.ambient(RDS, "r1");
    bed.routes("r1", &["x"]);
    assert_eq!(bed.take(), "");
    bed.routes("r2", &["a"]);
    assert_eq!(bed.take(), "{a=1} -RDS r1");
    bed.fail(RDS, "r1");
    bed.routes("r1", &["x"]);
    assert_eq!(bed.take(), "");
}

#[test]
fn a_listener_that_changes_only_itself_is_published() {
    // L-4: same RDS name, other filters or limits.
    let mut bed = Testbed::new();
    bed.rds("r");
    bed.routes("r", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    let before = bed.config().clone();
    bed.take();
    let hcm = HttpConnectionManager { max_stream_duration: Some(seconds(5)), ..hcm(RouteSource::Rds("r".to_owned())) };
    bed.changed("l", Resource::Listener(Arc::new(Listener::Api(hcm))));
    assert_eq!(bed.take(), "{a=1}");
    assert_eq!(bed.config().listener.max_stream_duration, Some(seconds(5)));
    assert!(Arc::ptr_eq(&before.virtual_host, &bed.config().virtual_host));
    assert!(Arc::ptr_eq(bed.cluster_config("a"), before.clusters["a"].as_ref().unwrap()));
}

#[test]
fn ambient_errors_of_listener_and_routes_are_notes() {
    // L-12, L-19; Go: AmbientError; Java: control plane error.
    let mut bed = Testbed::new();
    bed.rds("r");
    bed.routes("r", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    let before = bed.cluster_config("a").clone();
    bed.take();
    bed.ambient(LDS, "l");
    bed.ambient(RDS, "r");
    assert_eq!(bed.take(), "{a=1} {a=1}");
    let note = bed.note("a");
    assert!(note.find("\"l\"") < note.find("\"r\"") && note.contains("\"r\""), "{note}");
    assert!(note.contains("; ") && note.contains("cable cut"), "{note}");
    // What policies work with is the same as before.
    assert!(Arc::ptr_eq(&before.cluster, &bed.cluster_config("a").cluster));
    assert_eq!(before.children, bed.cluster_config("a").children);
    bed.clear(RDS, "r");
    bed.rds("r"); // C-13: a value clears the error, even an equal one
    assert_eq!(bed.take(), "{a=1} {a=1}");
    assert_eq!(bed.note("a"), "xDS node ID:node-1");
}

#[test]
fn equal_input_publishes_nothing() {
    let mut bed = Testbed::serving(&["a"]);
    bed.inline(&["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.confirmed(LDS, "l");
    bed.confirmed(CDS, "a");
    bed.confirmed(EDS, "a");
    bed.clear(EDS, "a");
    assert_eq!(bed.take(), "");
}

#[test]
fn what_changes_and_changes_back_before_it_is_complete_publishes_nothing() {
    let mut bed = Testbed::serving(&["a"]);
    bed.inline(&["b"]);
    bed.inline(&["a"]);
    assert_eq!(bed.take(), "+CDS b -CDS b"); // nothing to be fetched anew
    bed.eds("a");
    bed.endpoints("a", &[1]);
    assert_eq!(bed.take(), "");
}

#[test]
fn what_comes_together_is_published_once() {
    let mut bed = Testbed::serving(&["a", "b"]);
    bed.together(|bed| {
        bed.endpoints("a", &[2]);
        bed.endpoints("b", &[3]);
        bed.inline(&["b", "a"]);
    });
    assert_eq!(bed.take(), "{a=2 b=3}");
}

#[test]
fn updates_of_a_wrong_type_or_unknown_name_are_ignored() {
    let mut bed = Testbed::serving(&["a"]);
    let key = ResourceKey { resource_type: CDS, name: "a".into() };
    let update = Update::Changed(Resource::RouteConfig(routes("svc", &[])), bed.provenance());
    bed.manager.handle_update(bed.now, &key, update);
    bed.eds("unknown");
    bed.endpoints("unknown", &[9]);
    bed.fail(LDS, "other");
    bed.collection("unknown", &[9]);
    bed.answer("unknown", Ok(&[9]));
    assert_eq!(bed.take(), "");
}

#[test]
fn shutting_down_ends_every_watch_and_ignores_what_comes_later() {
    // Java: {lds,rds,cds,eds}UpdateAfterShutdown, subscribeToClusterAfterShutdown.
    let mut bed = Testbed::new();
    bed.rds("r");
    bed.routes("r", &["a", "d"]);
    bed.eds("a");
    bed.endpoints_in("a", &["c"]);
    bed.logical_dns("d", "host");
    bed.subscribe("s");
    bed.manager.shut_down(bed.now);
    bed.settle();
    bed.take();
    assert!(bed.watched.is_empty(), "{:?}", bed.watched);
    assert!(bed.asked.is_empty(), "{:?}", bed.asked);

    bed.inline(&["x"]);
    bed.routes("r", &["x"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.answer("host", Ok(&[1]));
    bed.subscribe("x");
    bed.release("s");
    bed.reresolve();
    bed.switch("B");
    bed.manager.shut_down(bed.now);
    bed.pass(seconds(1000));
    assert_eq!(bed.take(), "");
}
