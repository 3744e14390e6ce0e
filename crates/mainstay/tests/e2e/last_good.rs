//! Restarts while every control plane is down: last-good files, and directories as servers (FB-1 to FB-12).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use mainstay::bootstrap::Bootstrap;
use mainstay::event::{Event, Events};
use mainstay::last_good::{self, LastGood};
use mainstay::{Channel, ChannelBuilder, ServingState};
use mainstay_control_plane::{Server, resources};
use mainstay_xds::local;
use tonic::Code;

use crate::common::{
    Client, backends, bootstrap_of, call, control_plane, in_time, metadata, service, spread, status_of,
    until_answered_by,
};

// === The whole way ===

#[tokio::test]
async fn a_process_that_restarts_while_all_is_down_serves_from_disk_and_returns_without_a_failed_rpc() {
    let [one, two] = backends(["one", "two"]).await;
    let primary = control_plane(service(&[&one])).await;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("xds");
    keep("last-good-restart", &primary, &directory).await;
    let [file] = files(&directory);
    let written = fs::read(&file).unwrap();
    primary.stop().await;

    // Nothing of the first channel is left, as after a restart.
    let began = Instant::now();
    let channel = builder("last-good-restart", &primary).last_good(&*directory).build().unwrap();
    let mut events = channel.events();
    let mut client = Client::new(channel.clone());
    assert_eq!(call(&mut client).await.unwrap(), "one");
    eprintln!("first RPC from disk after {:?}", began.elapsed());
    let server = format!("last-good://{}", directory.display());
    let loaded = event(&mut events, |event| matches!(event, Event::LastGoodLoaded { .. })).await;
    assert_eq!(loaded.server(), Some(&*server));
    assert!(loaded.to_string().ends_with("4 resources that were good 0 s ago are served"), "{loaded}");

    // It is shown as what it is: FB-9.
    let config = status_of("last-good-restart").await.remove(0);
    assert!(metadata(&config, "mainstay.servers")[&server].starts_with("READY, "), "{config:?}");
    assert_eq!(metadata(&config, "mainstay.sources")["Listener \"service\""], server);
    let [listener, ..] = &config.generic_xds_configs[..] else { panic!("no resources") };
    let received_at = last_good::read(&file).unwrap().resources[0].received_at;
    let received_at = received_at.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let shown = listener.last_updated.as_ref().unwrap();
    assert_eq!(u64::try_from(shown.seconds).unwrap(), received_at.as_secs(), "the original time");
    let servers = channel.config().await.unwrap().servers;
    assert!(servers.iter().any(|status| status.server == server), "{servers:?}");

    // What came from the file is not written to it.
    assert_eq!(fs::read(&file).unwrap(), written);

    // The primary returns, with news: not a single RPC fails on the way.
    primary.control_plane().set(service(&[&two]));
    primary.start().unwrap();
    until_answered_by(&mut client, "two").await;
    assert_eq!(spread(&mut client, 20).await["two"], 20);
    event(&mut events, |event| matches!(event, Event::LastGoodWritten { .. })).await;
    assert_ne!(fs::read(&file).unwrap(), written);
    let before = file.with_extension("lastgood-before");
    assert_eq!(fs::read(before).unwrap(), written, "two generations");
}

#[tokio::test]
async fn a_server_that_restarts_while_all_is_down_serves_from_disk() {
    let control = control_plane(service(&[])).await;
    let home = tempfile::tempdir().unwrap();
    let start = |address: &str| {
        let json = format!(
            r#"{{"xds_servers": [{{"server_uri": "{}", "channel_creds": [{{"type": "insecure"}}]}}],
                "node": {{"id": "last-good-server"}}, "server_listener_resource_name_template": "listener/%s",
                "last_good": {{"directory": "{}", "max_age": "24h"}}}}"#,
            control.addr(),
            home.path().join("xds").display()
        );
        let builder = mainstay::Server::builder().bootstrap(Bootstrap::from_json(&json).unwrap());
        let service = mainstay_testservice::service("one", "one").unwrap();
        builder.add_service(service).listen(address.parse().unwrap()).start().unwrap()
    };
    let running = start("127.0.0.1:0");
    let address = running.local_addresses()[0];
    let name = format!("listener/{address}");
    control.control_plane().update(|snapshot| {
        snapshot.insert(resources::server_listener(&name, address, resources::rds("routes")));
        snapshot.insert(resources::server_route("routes"));
    });
    let mut events = running.events();
    event(&mut events, |event| matches!(event, Event::LastGoodWritten { .. })).await;
    in_time(running.shutdown()).await;
    control.stop().await;

    let running = start(&address.to_string());
    let mut events = running.events();
    let serving = |event: &Event| matches!(event, Event::ServingStateChanged { state: ServingState::Serving, .. });
    event(&mut events, serving).await;
    let channel =
        tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut client = mainstay_testservice::proto::test_service_client::TestServiceClient::new(channel);
    client.empty_call(mainstay_testservice::proto::Empty::default()).await.unwrap();
    let keys: Vec<_> = files::<1>(&home.path().join("xds")).map(|file| last_good::read(file).unwrap().key).into();
    assert_eq!(keys, ["#server"]);
}

#[tokio::test]
async fn eager_files_serve_while_the_primary_hangs() {
    // FB-10. Without it a channel waits for the primary until its connection has timed out.
    let [one] = backends(["one"]).await;
    let primary = control_plane(service(&[&one])).await;
    let home = tempfile::tempdir().unwrap();
    keep("last-good-eager", &primary, &home.path().join("xds")).await;
    let address = primary.addr();
    primary.stop().await;
    let _hangs = tokio::net::TcpListener::bind(address).await.unwrap();
    let eager = LastGood::new(home.path().join("xds")).eager(true);
    let channel = builder("last-good-eager", &primary).last_good(eager).build().unwrap();
    let mut client = Client::new(channel);
    assert_eq!(crate::common::call_within(&mut client, Duration::from_secs(4)).await.unwrap(), "one");
}

// === What is refused, and the words for it ===

#[tokio::test]
async fn a_file_that_is_off_in_any_way_is_refused_with_a_clear_word_and_nothing_of_it_is_used() {
    let [one] = backends(["one"]).await;
    let primary = control_plane(service(&[&one])).await;
    let home = tempfile::tempdir().unwrap();
    let original = home.path().join("original");
    keep("last-good-refused", &primary, &original).await;
    primary.stop().await;
    let [file] = files(&original);
    let good = fs::read(&file).unwrap();
    let day = Duration::from_secs(24 * 3600);

    let changed = |change: &dyn Fn(&mut local::LastGoodFile)| {
        let mut file = local::LastGoodFile::decode(&good).unwrap();
        change(&mut file);
        file.encode()
    };
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    let mut newer = good.clone();
    newer[11] = 9;
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("cut", good[..good.len() - 1].to_vec(), "it is damaged: the checksum does not match"),
        ("empty", Vec::new(), "it is cut off after 0 bytes"),
        ("flipped", flipped, "it is damaged: the checksum does not match"),
        ("newer", newer, "it has format 9, and this release reads format 1"),
        ("foreign", b"hello".to_vec(), "it is not a last-good file"),
        ("node", changed(&|file| file.node_id = "n2".to_owned()), "it is of the node \"n2\" and not of"),
        (
            "key",
            changed(&|file| file.key = "xds:///b".to_owned()),
            "it is of \"xds:///b\" and not of \"xds:///service\"",
        ),
        ("servers", changed(&|file| file.servers = [0; 32]), "it was written for another list of xds_servers"),
        ("old", changed(&|file| file.created_at -= day * 8), "it is 8 days old, and max_age is 7 days"),
    ];
    for (case, bytes, word) in cases {
        let directory = home.path().join(case);
        private(&directory);
        place(&directory.join(file.file_name().unwrap()), &bytes);
        assert_refused("last-good-refused", &primary, &directory, word).await;
    }

    // Others could have written it: FB-7.
    use std::os::unix::fs::PermissionsExt;
    let path = |case: &str| {
        let directory = home.path().join(case);
        private(&directory);
        let path = directory.join(file.file_name().unwrap());
        place(&path, &good);
        (directory, path)
    };
    let (directory, path_of_file) = path("mode");
    fs::set_permissions(&path_of_file, fs::Permissions::from_mode(0o660)).unwrap();
    assert_refused("last-good-refused", &primary, &directory, "can be written by others (mode 660)").await;
    let (directory, _) = path("directory");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
    assert_refused("last-good-refused", &primary, &directory, "can be written by others (mode 777)").await;
    let (directory, path_of_file) = path("owner");
    // Only root may give files away.
    if std::os::unix::fs::chown(&path_of_file, Some(4711), None).is_ok() {
        assert_refused("last-good-refused", &primary, &directory, "belongs to the user 4711").await;
    }
    assert_refused("last-good-refused", &primary, &home.path().join("nowhere"), "there is no such").await;
    assert_refused("another-node", &primary, &original, "there is no such file").await;
}

#[tokio::test]
async fn what_can_be_used_is_used() {
    let [one] = backends(["one"]).await;
    let primary = control_plane(service(&[&one])).await;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("xds");
    keep("last-good-usable", &primary, &directory).await;
    primary.stop().await;
    let [file] = files(&directory);
    let good = fs::read(&file).unwrap();
    let day = Duration::from_secs(24 * 3600);
    let made = |change: &dyn Fn(&mut local::LastGoodFile)| {
        let mut file = local::LastGoodFile::decode(&good).unwrap();
        change(&mut file);
        place(&directory.join(files::<1>(&directory)[0].file_name().unwrap()), &file.encode());
    };
    let serves = |settings: LastGood| {
        let channel = builder("last-good-usable", &primary).last_good(settings).build().unwrap();
        async move { call(&mut Client::new(channel)).await }
    };
    // Too old, and asked for all the same.
    made(&|file| file.created_at -= day * 30);
    assert_eq!(serves(LastGood::new(&directory)).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(serves(LastGood::new(&directory).allow_expired(true)).await.unwrap(), "one");
    assert_eq!(serves(LastGood::new(&directory).max_age(day * 31)).await.unwrap(), "one");
    // The clock was set back: nobody knows how old it is.
    made(&|file| file.created_at += day * 365);
    assert_eq!(serves(LastGood::new(&directory)).await.unwrap(), "one");
    // The newest is damaged, and the one before is not.
    place(&file.with_extension("lastgood-before"), &good);
    place(&file, &good[..good.len() / 2]);
    assert_eq!(serves(LastGood::new(&directory)).await.unwrap(), "one");
}

#[tokio::test]
async fn a_disk_that_takes_nothing_is_told_once_and_channels_do_not_care() {
    let [one] = backends(["one"]).await;
    let primary = control_plane(service(&[&one])).await;
    // A file where a directory should be.
    let home = tempfile::tempdir().unwrap();
    let blocked = home.path().join("file");
    fs::write(&blocked, "").unwrap();
    let channel = builder("last-good-full", &primary).last_good(blocked.join("xds")).build().unwrap();
    let mut events = channel.events();
    let mut client = Client::new(channel);
    assert_eq!(call(&mut client).await.unwrap(), "one");
    let failed = event(&mut events, |event| matches!(event, Event::LastGoodFailed { .. })).await;
    assert!(failed.to_string().contains("cannot be made"), "{failed}");
    assert_eq!(spread(&mut client, 5).await["one"], 5);
}

#[tokio::test]
async fn what_a_file_lacks_is_unknown_and_not_deleted() {
    // FB-3: a cluster that came after the file was written.
    let [one, two] = backends(["one", "two"]).await;
    let primary = control_plane(service(&[&one])).await;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("xds");
    keep("last-good-lacks", &primary, &directory).await;
    let [file] = files(&directory);
    let mut lacking = local::LastGoodFile::decode(&fs::read(&file).unwrap()).unwrap();
    lacking.resources.retain(|stored| stored.resource.resource_type != mainstay_xds::resource::ResourceType::Endpoints);
    place(&file, &lacking.encode());
    primary.stop().await;
    let channel = builder("last-good-lacks", &primary).last_good(&*directory).build().unwrap();
    let mut client = Client::new(channel.clone());
    let status = call(&mut client).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("does not have it, which says nothing of whether it exists"), "{status}");
    primary.control_plane().set(service(&[&two]));
    primary.start().unwrap();
    let mut ready = channel;
    in_time(ready.ready()).await.unwrap();
    until_answered_by(&mut client, "two").await;
}

// === Directories as servers ===

#[cfg(not(feature = "file-servers"))]
#[tokio::test]
async fn without_the_feature_a_directory_says_that_it_cannot_be_a_server() {
    let home = tempfile::tempdir().unwrap();
    let primary = control_plane(service(&[])).await;
    primary.stop().await;
    let channel = with_directory("file-server", &primary, home.path());
    let mut events = channel.events();
    let told = |event: &Event| {
        event.server().is_some_and(|server| server.starts_with("file://")) && event.to_string().contains("file-servers")
    };
    event(&mut events, told).await;
}

#[cfg(feature = "file-servers")]
#[tokio::test]
async fn a_directory_of_an_operator_serves_when_the_primary_is_down_and_is_followed() {
    let [one, two, three] = backends(["one", "two", "three"]).await;
    let primary = control_plane(service(&[&three])).await;
    primary.stop().await;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("xds");
    fs::create_dir(&directory).unwrap();
    let write = |name: &str, snapshot: mainstay_control_plane::Snapshot| {
        let temporary = home.path().join("temporary");
        fs::write(&temporary, snapshot.to_yaml().unwrap()).unwrap();
        fs::rename(temporary, directory.join(name)).unwrap();
    };
    write("service.yaml", service(&[&one]));
    let channel = with_directory("file-server", &primary, &directory);
    let mut client = Client::new(channel);
    assert_eq!(call(&mut client).await.unwrap(), "one");
    let config = status_of("file-server").await.remove(0);
    assert_eq!(metadata(&config, "mainstay.sources")["Cluster \"service\""], format!("file://{}", directory.display()));
    // It is followed.
    write("service.yaml", service(&[&two]));
    until_answered_by(&mut client, "two").await;
    // What goes from it is not deleted.
    write("other.yaml", mainstay_control_plane::Snapshot::builder().cluster(resources::eds_cluster("other")).build());
    fs::remove_file(directory.join("service.yaml")).unwrap();
    assert_eq!(spread(&mut client, 20).await["two"], 20);
    primary.start().unwrap();
    until_answered_by(&mut client, "three").await;
}

fn with_directory(node: &str, primary: &Server, directory: &Path) -> Channel {
    let insecure = r#""channel_creds": [{"type": "insecure"}]"#;
    let json = format!(
        r#"{{"xds_servers": [{{"server_uri": "{}", {insecure}}}, {{"server_uri": "file://{}", {insecure}}}], "node": {{"id": "{node}"}}}}"#,
        primary.addr(),
        directory.display()
    );
    quick(Channel::builder("xds:///service").bootstrap(Bootstrap::from_json(&json).unwrap())).build().unwrap()
}

// === Steps ===

fn builder(node: &str, primary: &Server) -> ChannelBuilder {
    quick(Channel::builder("xds:///service").bootstrap(bootstrap_of(node, &[primary])))
}

fn quick(builder: ChannelBuilder) -> ChannelBuilder {
    builder.backoff(Duration::from_millis(20), Duration::from_millis(100)).reconnect_spread(Duration::ZERO)
}

/// A channel that lives until its configuration is on disk.
async fn keep(node: &str, primary: &Server, directory: &Path) {
    let channel = builder(node, primary).last_good(directory).build().unwrap();
    let mut events = channel.events();
    let mut client = Client::new(channel);
    call(&mut client).await.unwrap();
    let written = event(&mut events, |event| matches!(event, Event::LastGoodWritten { .. })).await;
    assert!(written.to_string().ends_with("4 resources are kept as last good"), "{written}");
}

async fn assert_refused(node: &str, primary: &Server, directory: &Path, word: &str) {
    let channel = builder(node, primary).last_good(directory).build().unwrap();
    let mut events = channel.events();
    let mut client = Client::new(channel);
    let status = call(&mut client).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{word}: {status}");
    let of_files =
        |event: &Event| matches!(event, Event::Unreachable { server, .. } if server.starts_with("last-good://"));
    let refused = event(&mut events, of_files).await;
    assert!(refused.to_string().contains(word), "{refused:?} and not {word:?}");
}

/// Waits for an event of this kind.
async fn event(events: &mut Events, is_meant: impl Fn(&Event) -> bool) -> Event {
    let wait = async {
        loop {
            let event = events.next().await.expect("a channel that lives");
            if is_meant(&event) {
                return event;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.expect("it never came")
}

fn files<const N: usize>(directory: &Path) -> [PathBuf; N] {
    last_good::list(directory).unwrap().try_into().expect("as many files")
}

fn private(directory: &Path) {
    use std::os::unix::fs::DirBuilderExt;

    fs::DirBuilder::new().mode(0o700).create(directory).unwrap();
}

fn place(path: &Path, bytes: &[u8]) {
    use std::os::unix::fs::PermissionsExt;

    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}
