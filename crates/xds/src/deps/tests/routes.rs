//! Listener and routes.

use super::*;

#[test]
fn nothing_is_published_before_every_part_is_there() {
    // L-3, L-7, L-10; Go: HappyCase, NoRouteConfigResource; Java: basic config.
    let mut world = World::new();
    world.rds("r");
    assert_eq!(world.take(), "+RDS r");
    world.routes("r", &["a", "b"]);
    assert_eq!(world.take(), "+CDS a +CDS b");
    world.eds("a");
    world.endpoints("a", &[1]);
    world.eds("b");
    assert_eq!(world.take(), "+EDS a +EDS b");
    world.endpoints("b", &[2]);
    assert_eq!(world.take(), "{a=1 b=2}");
    assert_eq!(world.note("a"), "xDS node ID:node-1"); // L-19
}

#[test]
fn inline_routes_need_no_watch() {
    // L-4, L-22; Go: InlineRouteConfig.
    let mut world = World::new();
    world.inline(&["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    assert_eq!(world.take(), "+CDS a +EDS a {a=1}");
    let config = world.config();
    assert!(matches!(&config.listener.routes, RouteSource::Inline(routes) if *routes == config.route_config));
    assert_eq!(config.virtual_host, config.route_config.virtual_hosts[0]);
}

#[test]
fn a_listener_that_cannot_be_had_fails_the_channel_and_recovers_from_what_is_held() {
    // L-11, L-13, L-29; Go: ListenerResourceNotFoundError; Java: missing LDS, corrupt LDS.
    let mut world = World::serving(&["a"]);
    world.fail(LDS, "l");
    assert_eq!(world.take(), "error LDS l");
    let text = world.config_error();
    assert!(text.contains("\"l\"") && text.contains("A:443") && text.contains("cable cut"), "{text}");
    // Updates meanwhile are taken in, and do not bring the old configuration back.
    world.endpoints("a", &[2]);
    assert_eq!(world.take(), "");
    world.inline(&["a"]);
    assert_eq!(world.take(), "{a=2}");
}

#[test]
fn the_same_configuration_is_published_again_after_an_error() {
    // L-29.
    let mut world = World::serving(&["a"]);
    let before = world.config().clone();
    world.fail(LDS, "l");
    world.inline(&["a"]);
    assert_eq!(world.take(), "error LDS l {a=1}");
    assert!(Arc::ptr_eq(&before, world.config()));
}

#[test]
fn a_dropped_configuration_does_not_come_back_while_new_routes_are_awaited() {
    // L-11: after the error the old pair must not be used.
    let mut world = World::serving(&["a"]);
    world.fail(LDS, "l");
    world.rds("r");
    world.endpoints("a", &[2]);
    assert_eq!(world.take(), "error LDS l +RDS r");
    world.routes("r", &["a"]);
    assert_eq!(world.take(), "{a=2}");
}

#[test]
fn routes_that_cannot_be_had_fail_the_channel() {
    // L-11; Go: RouteConfigResourceError; Java: missing RDS.
    let mut world = World::new();
    world.rds("r");
    world.fail(RDS, "r");
    assert_eq!(world.take(), "+RDS r error RDS r");
    world.routes("r", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    assert_eq!(world.take(), "+CDS a +EDS a {a=1}");
    world.fail(RDS, "r");
    assert_eq!(world.take(), "error RDS r");
}

#[test]
fn a_listener_for_servers_fails_the_channel() {
    // L-11, R-14; Java: TCP listener errors.
    let mut world = World::serving(&["a"]);
    world.changed("l", server_listener());
    assert_eq!(world.take(), "error server listener l");
    assert_eq!(world.config_error(), "Listener \"l\" is for servers: expected an API listener");
    world.inline(&["a"]);
    assert_eq!(world.take(), "{a=1}");
}

#[test]
fn routes_without_a_virtual_host_for_us_fail_the_channel() {
    // L-11; Go: NoVirtualHost, NoVirtualHost_ExistingResource; Java: update to missing vhost.
    let mut world = World::new();
    world.rds("r");
    world.changed("r", Resource::RouteConfig(routes("other", &["a"])));
    assert_eq!(world.take(), "+RDS r error svc in r");
    assert_eq!(world.config_error(), "RouteConfiguration \"r\" has no virtual host for \"svc\"");
    world.routes("r", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    assert_eq!(world.take(), "+CDS a +EDS a {a=1}");
    world.changed("r", Resource::RouteConfig(routes("other", &["a"])));
    assert_eq!(world.take(), "error svc in r");
    world.changed("l", Resource::Listener(Arc::new(Listener::Api(hcm(RouteSource::Inline(routes("other", &[])))))));
    assert_eq!(world.take(), "error svc in l -RDS r");
}

#[test]
fn changed_routes_wait_for_their_clusters() {
    // L-4, L-9, P-96; Go: RouteResourceUpdate; Java: config update.
    let mut world = World::serving(&["a"]);
    world.inline(&["b"]);
    assert_eq!(world.take(), "+CDS b");
    world.eds("b");
    assert_eq!(world.take(), "+EDS b");
    assert!(world.config().clusters.contains_key("a")); // still in force
    world.endpoints("b", &[2]);
    assert_eq!(world.take(), "{b=2} -CDS a -EDS a");
}

#[test]
fn routes_move_from_rds_to_inline_and_back() {
    // L-4; Go: RouteResourceChangeToInline.
    let mut world = World::new();
    world.rds("r");
    world.routes("r", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    world.take();
    world.inline(&["a"]);
    assert_eq!(world.take(), "{a=1} -RDS r");
    world.rds("r");
    assert_eq!(world.take(), "+RDS r");
    world.routes("r", &["a"]);
    assert_eq!(world.take(), "{a=1}");
}

#[test]
fn a_new_listener_is_never_published_with_old_routes() {
    // D15, L-4; Java: change RDS name.
    let mut world = World::new();
    world.rds("r1");
    world.routes("r1", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    let old = world.config().clone();
    world.take();

    world.rds("r2");
    assert_eq!(world.take(), "+RDS r2"); // P-96: the new watch first
    world.endpoints("a", &[2]);
    assert_eq!(world.take(), "{a=2}"); // the pair before: an old listener with its own routes
    assert!(Arc::ptr_eq(&old.listener, &world.config().listener));
    assert!(Arc::ptr_eq(&old.route_config, &world.config().route_config));

    world.routes("r2", &["a", "b"]);
    world.eds("b");
    world.endpoints("b", &[3]);
    assert_eq!(world.take(), "+CDS b +EDS b {a=2 b=3} -RDS r1");
    assert_eq!(world.config().listener.routes, RouteSource::Rds("r2".to_owned()));
    assert_eq!(world.config().virtual_host.routes.len(), 2);
}

#[test]
fn news_of_an_earlier_route_configuration_is_ignored() {
    // D14, grpc-go defect 6, L-5.
    let mut world = World::new();
    world.rds("r1");
    world.routes("r1", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    world.rds("r2");
    world.take();
    world.fail(RDS, "r1");
    world.ambient(RDS, "r1");
    world.routes("r1", &["x"]);
    assert_eq!(world.take(), "");
    world.routes("r2", &["a"]);
    assert_eq!(world.take(), "{a=1} -RDS r1");
    world.fail(RDS, "r1");
    world.routes("r1", &["x"]);
    assert_eq!(world.take(), "");
}

#[test]
fn a_listener_that_changes_only_itself_is_published() {
    // L-4: same RDS name, other filters or limits.
    let mut world = World::new();
    world.rds("r");
    world.routes("r", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    let before = world.config().clone();
    world.take();
    let hcm = HttpConnectionManager { max_stream_duration: Some(seconds(5)), ..hcm(RouteSource::Rds("r".to_owned())) };
    world.changed("l", Resource::Listener(Arc::new(Listener::Api(hcm))));
    assert_eq!(world.take(), "{a=1}");
    assert_eq!(world.config().listener.max_stream_duration, Some(seconds(5)));
    assert!(Arc::ptr_eq(&before.virtual_host, &world.config().virtual_host));
    assert!(Arc::ptr_eq(world.cluster_config("a"), before.clusters["a"].as_ref().unwrap()));
}

#[test]
fn ambient_errors_of_listener_and_routes_are_notes() {
    // L-12, L-19; Go: AmbientError; Java: control plane error.
    let mut world = World::new();
    world.rds("r");
    world.routes("r", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    let before = world.cluster_config("a").clone();
    world.take();
    world.ambient(LDS, "l");
    world.ambient(RDS, "r");
    assert_eq!(world.take(), "{a=1} {a=1}");
    let note = world.note("a");
    assert!(note.find("\"l\"") < note.find("\"r\"") && note.contains("\"r\""), "{note}");
    assert!(note.contains("; ") && note.contains("cable cut"), "{note}");
    // What policies work with is the same as before.
    assert!(Arc::ptr_eq(&before.cluster, &world.cluster_config("a").cluster));
    assert_eq!(before.children, world.cluster_config("a").children);
    world.clear(RDS, "r");
    world.rds("r"); // C-13: a value clears the error, even an equal one
    assert_eq!(world.take(), "{a=1} {a=1}");
    assert_eq!(world.note("a"), "xDS node ID:node-1");
}

#[test]
fn equal_input_publishes_nothing() {
    let mut world = World::serving(&["a"]);
    world.inline(&["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    world.confirmed(LDS, "l");
    world.confirmed(CDS, "a");
    world.confirmed(EDS, "a");
    world.clear(EDS, "a");
    assert_eq!(world.take(), "");
}

#[test]
fn what_changes_and_changes_back_before_it_is_complete_publishes_nothing() {
    let mut world = World::serving(&["a"]);
    world.inline(&["b"]);
    world.inline(&["a"]);
    assert_eq!(world.take(), "+CDS b -CDS b"); // nothing to be fetched anew
    world.eds("a");
    world.endpoints("a", &[1]);
    assert_eq!(world.take(), "");
}

#[test]
fn what_comes_together_is_published_once() {
    let mut world = World::serving(&["a", "b"]);
    world.together(|world| {
        world.endpoints("a", &[2]);
        world.endpoints("b", &[3]);
        world.inline(&["b", "a"]);
    });
    assert_eq!(world.take(), "{a=2 b=3}");
}

#[test]
fn updates_of_a_wrong_type_or_unknown_name_are_ignored() {
    let mut world = World::serving(&["a"]);
    let key = ResourceKey { resource_type: CDS, name: "a".into() };
    let update = Update::Changed(Resource::RouteConfig(routes("svc", &[])), world.provenance());
    world.manager.handle_update(world.now, &key, update);
    world.eds("unknown");
    world.endpoints("unknown", &[9]);
    world.fail(LDS, "other");
    world.collection("unknown", &[9]);
    world.answer("unknown", Ok(&[9]));
    assert_eq!(world.take(), "");
}

#[test]
fn shutting_down_ends_every_watch_and_ignores_what_comes_later() {
    // Java: {lds,rds,cds,eds}UpdateAfterShutdown, subscribeToClusterAfterShutdown.
    let mut world = World::new();
    world.rds("r");
    world.routes("r", &["a", "d"]);
    world.eds("a");
    world.endpoints_in("a", &["c"]);
    world.logical_dns("d", "host");
    world.subscribe("s");
    world.manager.shut_down(world.now);
    world.settle();
    world.take();
    assert!(world.watched.is_empty(), "{:?}", world.watched);
    assert!(world.asked.is_empty(), "{:?}", world.asked);

    world.inline(&["x"]);
    world.routes("r", &["x"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    world.answer("host", Ok(&[1]));
    world.subscribe("x");
    world.release("s");
    world.reresolve();
    world.switch("B");
    world.manager.shut_down(world.now);
    world.pass(seconds(1000));
    assert_eq!(world.take(), "");
}
