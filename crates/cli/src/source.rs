//! Where a configuration is looked for: the control plane, files, or a process that runs (OP-1, OP-17).

mod csds;
mod envoy;

use std::{
    fmt, fs,
    net::{SocketAddr, ToSocketAddrs as _},
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use mainstay::{
    Channel,
    bootstrap::Bootstrap,
    view::{ConfigView, HeldResource, ResourceState},
};
use mainstay_control_plane::{Body, Snapshot, load_directory};
use mainstay_xds::{
    bootstrap::{self as core, Guards},
    deps::{ConfigError, DnsName, HeldResources, XdsConfig},
    target::Target,
};
use tokio::time::Instant;

use crate::{channelz::Channels, connect, failure::Failure};

/// Where to look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The control plane of the bootstrap.
    Live,
    /// A directory in the format of `mainstay serve`.
    Directory(PathBuf),
    /// One file of that format.
    File(PathBuf),
    /// The admin port of a gRPC process.
    Csds(String),
    /// The admin port of an Envoy.
    Envoy(String),
}

/// What a process, or a set of files, holds.
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    /// What errors and reports call it.
    pub(crate) name: String,
    /// One for each xDS client in it.
    pub(crate) scopes: Vec<Scope>,
    /// What channelz tells, if there is one.
    pub(crate) channels: Option<Channels>,
}

/// What one xDS client holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scope {
    /// `client_scope`, mostly the target; may be empty.
    pub(crate) scope: String,
    pub(crate) node: String,
    pub(crate) user_agent: String,
    pub(crate) resources: Vec<HeldResource>,
    /// The xDS servers with their states, if it tells.
    pub(crate) servers: Vec<(String, String)>,
}

/// What a bootstrap says, in both languages.
#[derive(Clone, Debug)]
pub(crate) struct Boot {
    pub(crate) public: Bootstrap,
    core: Arc<core::Bootstrap>,
}

/// A configuration as the core has it.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub(crate) target: Target,
    pub(crate) config: Result<Arc<XdsConfig>, Arc<ConfigError>>,
}

impl Source {
    /// Everything that is held there. Not for [`Source::Live`].
    pub(crate) async fn fetch(&self, timeout: Duration) -> Result<Holding, Failure> {
        match self {
            Self::Live => Err(Failure::usage("live is not a process to ask")),
            Self::Directory(path) => read_directory(path),
            Self::File(path) => read_file(path),
            Self::Csds(address) => csds::fetch(address, timeout).await,
            Self::Envoy(address) => envoy::fetch(address, timeout).await,
        }
    }

    /// What a channel to `target` makes of what is there, and what channelz tells beside it.
    pub(crate) async fn view(
        &self,
        target: &str,
        bootstrap: Option<&Path>,
        timeout: Duration,
    ) -> Result<(ConfigView, Boot, Option<Holding>), Failure> {
        if *self == Self::Live {
            let boot = Boot::of_user(bootstrap)?.ok_or_else(no_bootstrap)?;
            let builder = Channel::builder(target).bootstrap(boot.public.clone()).without_endpoints();
            let channel = connect::build(builder)?;
            return Ok((first_view(&channel, timeout).await?, boot, None));
        }
        let holding = self.fetch(timeout).await?;
        let boot = Boot::for_holding(bootstrap, &holding)?;
        let scope = holding.scope_of(target, &boot)?;
        let view = holding.view_of(scope, target, &boot)?;
        Ok((view, boot, Some(holding)))
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = |rest: &str| if rest.is_empty() { Err(EXPECTED.to_owned()) } else { Ok(rest.to_owned()) };
        match text.split_once(':') {
            _ if text == "live" => Ok(Self::Live),
            Some(("dir", path)) => Ok(Self::Directory(named(path)?.into())),
            Some(("file", path)) => Ok(Self::File(named(path)?.into())),
            Some(("csds", address)) => Ok(Self::Csds(named(address)?)),
            Some(("envoy", address)) => Ok(Self::Envoy(named(address)?)),
            _ if Path::new(text).is_dir() => Ok(Self::Directory(text.into())),
            _ if Path::new(text).is_file() => Ok(Self::File(text.into())),
            Some((host, port)) if !host.is_empty() && !port.is_empty() => Ok(Self::Csds(text.to_owned())),
            _ => Err(EXPECTED.to_owned()),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live => f.write_str("live"),
            Self::Directory(path) => write!(f, "dir:{}", path.display()),
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Csds(address) => f.write_str(address),
            Self::Envoy(address) => write!(f, "envoy:{address}"),
        }
    }
}

// === impl Holding ===

impl Holding {
    /// The client in it that is for a target: by its scope, or by the Listener that it holds.
    pub(crate) fn scope_of(&self, target: &str, boot: &Boot) -> Result<&Scope, Failure> {
        let wanted = boot.target(target)?;
        let by_scope = self.scopes.iter().find(|scope| scope.scope == *wanted.canonical || scope.scope == target);
        let has = |scope: &&Scope| scope.listeners().any(|name| *name == *wanted.listener);
        let by_listener = || self.scopes.iter().find(has);
        let is_for = |scope: &&Scope| scope.targets().iter().any(|known| *known == *wanted.canonical);
        let by_another_name = || self.scopes.iter().find(is_for);
        by_scope.or_else(by_listener).or_else(by_another_name).ok_or_else(|| {
            let known: Vec<String> = self.scopes.iter().flat_map(Scope::targets).collect();
            let failure = Failure::failed(format!("{} holds nothing for {target}", self.name));
            match known.is_empty() {
                true => failure.tip("it holds no Listener at all: is it an xDS client, and has it been used?"),
                false => failure.tip(format!("it holds {}", known.join(", "))),
            }
        })
    }

    /// What a channel to `target` makes of what a client holds.
    pub(crate) fn view_of(&self, scope: &Scope, target: &str, boot: &Boot) -> Result<ConfigView, Failure> {
        let (name, node) = (&self.name, &scope.node);
        ConfigView::of_resources(target, &boot.public, name, node, &scope.resources, look_up)
            .map_err(|error| Failure::usage(error.to_string()))
    }
}

impl Scope {
    /// The targets that it is for, as far as that is known.
    pub(crate) fn targets(&self) -> Vec<String> {
        if self.scope.starts_with("xds:") {
            return vec![self.scope.clone()];
        }
        let target = |name: &str| {
            let path = name.split('?').next().unwrap_or(name);
            format!("xds:///{}", path.rsplit('/').next().unwrap_or(path))
        };
        let clients = self.resources.iter().filter(|resource| is_listener(resource) && !is_for_servers(resource));
        clients.map(|resource| target(&resource.name)).collect()
    }

    fn listeners(&self) -> impl Iterator<Item = &str> {
        self.resources.iter().filter(|resource| is_listener(resource)).map(|resource| resource.name.as_str())
    }
}

// === impl Boot ===

impl Boot {
    /// Reads a bootstrap.
    pub(crate) fn from_json(json: &str) -> Result<Self, Failure> {
        let public = Bootstrap::from_json(json).map_err(|error| Failure::failed(error.to_string()))?;
        let core = core::Bootstrap::parse(json, Guards::from_vars(|name| std::env::var(name).ok()));
        let core = core.map_err(|error| Failure::failed(format!("the bootstrap: {error}")))?;
        Ok(Self { public, core: Arc::new(core) })
    }

    /// The file that was given, or what the environment names; nothing if it names none.
    pub(crate) fn of_user(file: Option<&Path>) -> Result<Option<Self>, Failure> {
        let from_env = || std::env::var_os("GRPC_XDS_BOOTSTRAP").filter(|path| !path.is_empty()).map(PathBuf::from);
        if let Some(path) = file.map(Path::to_owned).or_else(from_env) {
            let json = fs::read_to_string(&path)
                .map_err(|error| Failure::failed(format!("cannot read the bootstrap {}: {error}", path.display())))?;
            return Self::from_json(&json).map(Some);
        }
        let content = std::env::var("GRPC_XDS_BOOTSTRAP_CONFIG").ok().filter(|json| !json.is_empty());
        content.map(|json| Self::from_json(&json)).transpose()
    }

    /// Whether channels with it keep what they are told in files.
    pub(crate) fn keeps_last_good(&self) -> bool {
        self.core.last_good.is_some()
    }

    /// The bootstrap of the user, or one that allows whatever the resources name: that of another process is not known.
    fn for_holding(file: Option<&Path>, holding: &Holding) -> Result<Self, Failure> {
        if let Some(boot) = Self::of_user(file)? {
            return Ok(boot);
        }
        let resources = holding.scopes.iter().flat_map(|scope| &scope.resources);
        Self::for_resources(resources)
    }

    /// One that allows whatever the resources name.
    pub(crate) fn for_resources<'a>(resources: impl Iterator<Item = &'a HeldResource>) -> Result<Self, Failure> {
        let (mut instances, mut authorities) = (serde_json::Map::new(), serde_json::Map::new());
        let files = serde_json::json!({
            "plugin_name": "file_watcher",
            "config": { "certificate_file": "cert.pem", "private_key_file": "key.pem", "ca_certificate_file": "ca.pem" },
        });
        for resource in resources {
            for instance in csds::certificate_providers(resource) {
                instances.insert(instance, files.clone());
            }
            let authority = resource.name.strip_prefix("xdstp://").and_then(|rest| rest.split('/').next());
            authorities.extend(authority.map(|authority| (authority.to_owned(), serde_json::json!({}))));
        }
        let server = serde_json::json!({ "server_uri": "localhost:1", "channel_creds": [{ "type": "insecure" }] });
        let json = serde_json::json!({
            "xds_servers": [server],
            "node": { "id": "mainstay" },
            "certificate_providers": instances,
            "authorities": authorities,
        });
        Self::from_json(&json.to_string())
    }

    fn target(&self, target: &str) -> Result<Target, Failure> {
        Target::resolve(target, &self.core).map_err(|error| Failure::usage(error.to_string()))
    }

    /// The configuration of a view as the core has it, from the bytes of its resources; nothing while it waits for some.
    pub(crate) fn resolve(&self, view: &ConfigView) -> Result<Option<Resolved>, Failure> {
        let mut look_up = |name: &DnsName| addresses_in(view, name).map_or_else(|| look_up(&name.host, name.port), Ok);
        let holder = view.resources.iter().find_map(|resource| Some(resource.value.as_ref()?.server.clone()));
        let holder = holder.unwrap_or_default();
        let mut held = HeldResources::new(&self.core, &holder, &view.node_id, &mut look_up);
        for status in &view.resources {
            let content = match (&status.value, &status.error) {
                (Some(value), _) => Ok(value.encoded.clone()),
                (None, Some(error)) => Err(error.to_string()),
                (None, None) => Err("it was asked for and has not come".to_owned()),
            };
            let version = status.value.as_ref().map_or("", |value| &value.version);
            held.insert(status.resource.resource_type.type_url(), &status.resource.name, version, content);
        }
        let target = held.find_listener(self.target(&view.target)?);
        let config = held.resolve(&target);
        Ok(config.map(|config| Resolved { target, config }))
    }
}

/// The first view with a configuration or an error in its place, or what there is when the time is up.
pub(crate) async fn first_view(channel: &Channel, timeout: Duration) -> Result<ConfigView, Failure> {
    let ended = || Failure::failed("the client has ended");
    let (mut configs, deadline) = (channel.configs(), Instant::now() + timeout);
    let mut view = configs.next().await.ok_or_else(ended)?;
    while view.config.is_none() {
        match tokio::time::timeout_at(deadline, configs.next()).await {
            Ok(next) => view = next.ok_or_else(ended)?,
            Err(_) => break,
        }
    }
    Ok(view)
}

/// The addresses that a channel found for a DNS name.
fn addresses_in(view: &ConfigView, name: &DnsName) -> Option<Vec<SocketAddr>> {
    let config = view.config.as_ref()?.as_ref().ok()?;
    let cluster = config.clusters.values().flatten().find(|cluster| match &cluster.kind {
        mainstay::view::ClusterKind::LogicalDns { host, port, .. } => *host == name.host && *port == name.port,
        _ => false,
    })?;
    let localities = cluster.endpoints.as_ref()?.priorities.iter().flat_map(|priority| &priority.localities);
    Some(localities.flat_map(|locality| &locality.endpoints).flat_map(|endpoint| endpoint.addresses.clone()).collect())
}

fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    (host, port).to_socket_addrs().map(Iterator::collect).map_err(|error| error.to_string())
}

fn read_directory(path: &Path) -> Result<Holding, Failure> {
    let snapshots = load_directory(path).map_err(|errors| unreadable(path, &errors))?;
    Ok(Holding::of_snapshot(&format!("dir:{}", path.display()), &snapshots.default))
}

fn read_file(path: &Path) -> Result<Holding, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::failed(format!("cannot read {}: {error}", path.display())))?;
    let snapshot = Snapshot::from_yaml(&text).map_err(|errors| unreadable(path, &errors))?;
    Ok(Holding::of_snapshot(&format!("file:{}", path.display()), &snapshot))
}

impl Holding {
    /// Resources as files have them: each is held, as if it had just come.
    fn of_snapshot(name: &str, snapshot: &Snapshot) -> Self {
        let resource = |resource: mainstay_control_plane::Resource| {
            let mut held = HeldResource::new(resource.type_url.as_str(), resource.name);
            held.server = name.to_owned();
            match resource.body {
                Body::Message(any) => {
                    (held.state, held.encoded) = (ResourceState::Acked, Some(Bytes::from(any.value)));
                }
                Body::Error { code, message } => {
                    held.state = ResourceState::ReceivedError;
                    held.error = Some(format!("{code:?}: {message}"));
                }
            }
            held
        };
        let resources = snapshot.resources().map(resource).collect();
        let scope = Scope { node: "mainstay".to_owned(), resources, ..Scope::default() };
        Self { name: name.to_owned(), scopes: vec![scope], channels: None }
    }
}

fn unreadable(path: &Path, errors: &mainstay_control_plane::LoadErrors) -> Failure {
    let reasons: Vec<_> = errors.0.iter().map(|error| format!("\n  {error}")).collect();
    Failure::failed(format!("cannot read {}:{}", path.display(), reasons.concat()))
}

fn is_listener(resource: &HeldResource) -> bool {
    resource.type_url.ends_with("envoy.config.listener.v3.Listener")
}

fn is_for_servers(resource: &HeldResource) -> bool {
    use envoy_types::pb::envoy::config::listener::v3::Listener;
    use prost::Message as _;
    let listener = resource.encoded.as_ref().and_then(|bytes| Listener::decode(bytes.as_ref()).ok());
    listener.is_some_and(|listener| listener.api_listener.is_none())
}

fn no_bootstrap() -> Failure {
    Failure::failed("there is no bootstrap: GRPC_XDS_BOOTSTRAP and GRPC_XDS_BOOTSTRAP_CONFIG are not set")
        .tip("set one of them or give --bootstrap; files and running processes need none")
}

const EXPECTED: &str = "expected HOST:PORT of an admin port (CSDS), envoy:HOST:PORT, dir:PATH, file:PATH, or live";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart_by_their_beginning() {
        let csds = |address: &str| Ok(Source::Csds(address.to_owned()));
        assert_eq!("live".parse(), Ok(Source::Live));
        assert_eq!("127.0.0.1:9901".parse(), csds("127.0.0.1:9901"));
        assert_eq!("csds:localhost:9901".parse(), csds("localhost:9901"));
        assert_eq!("envoy:[::1]:9901".parse(), Ok(Source::Envoy("[::1]:9901".to_owned())));
        assert_eq!("dir:a:b".parse(), Ok(Source::Directory("a:b".into())));
        assert_eq!("file:x.yaml".parse(), Ok(Source::File("x.yaml".into())));
        assert_eq!(".".parse(), Ok(Source::Directory(".".into())), "a directory that is there needs no beginning");
        for text in ["", "dir:", "nowhere", ":1", "a:"] {
            assert_eq!(text.parse::<Source>(), Err(EXPECTED.to_owned()), "{text}");
        }
    }
}
