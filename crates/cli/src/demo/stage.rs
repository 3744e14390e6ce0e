//! The real mesh of the demo: backends and control planes on ports of this machine, all in this process.

use std::collections::BTreeMap;

use mainstay::{
    Channel, Credentials,
    bootstrap::{Bootstrap, BootstrapBuilder, Node, ServerConfig},
    event::Events,
};
use mainstay_control_plane::{ControlPlane, Server, Snapshot, TypeUrl, resources};
use mainstay_testservice::{Backend, proto::test_service_client::TestServiceClient};

use super::{
    play::Stage,
    said::Said,
    script::{Act, BACKENDS, Cluster, Sight},
    secured::{self, SecuredServers},
};
use crate::{call::Caller, connect::build, failure::Failure};

/// Everything that lives in the demo, except the client.
#[derive(Debug)]
pub(super) struct Mesh {
    backends: BTreeMap<&'static str, Backend>,
    /// The primary and the fallback.
    control_planes: [Server; 2],
    /// What the control planes announce.
    route: Cluster,
    endpoints: BTreeMap<Cluster, &'static [&'static str]>,
    /// What the client says, once there is one.
    events: Option<Events>,
    /// The servers that prove who they are.
    secured: SecuredServers,
}

impl Mesh {
    /// Starts everything on ports that the system chooses.
    pub(super) async fn start() -> Result<Self, Failure> {
        let mut backends = BTreeMap::new();
        for name in BACKENDS {
            backends.insert(name, Backend::spawn(ANY_PORT, name).await.map_err(|error| no_port(name, &error))?);
        }
        let mut control_planes = Vec::new();
        for name in ["the primary control plane", "the fallback control plane"] {
            control_planes.push(ControlPlane::new().serve(ANY_PORT).await.map_err(|error| no_port(name, &error))?);
        }
        let control_planes = control_planes.try_into().expect("the loop above makes two");
        let endpoints = Cluster::FIRST.map(|cluster| (cluster, cluster.first_endpoints())).into();
        let control_planes: [Server; 2] = control_planes;
        let secured = SecuredServers::start(servers(&control_planes)).await?;
        let mesh = Self { backends, control_planes, route: Cluster::Blue, endpoints, events: None, secured };
        mesh.announce();
        Ok(mesh)
    }

    /// Who is who, for those who want to look in from outside.
    pub(super) fn describe(&self) -> String {
        let [primary, fallback] = self.control_planes.each_ref().map(Server::addr);
        let backends: Vec<_> =
            BACKENDS.iter().filter_map(|name| Some(format!("{name} {}", self.backends.get(name)?.addr()))).collect();
        format!("control planes: primary {primary}, fallback {fallback}\nbackends: {}", backends.join(", "))
    }

    /// The client whose traffic is watched, and whose words are heard from now on.
    pub(super) fn client(&mut self) -> Result<Box<dyn Caller>, Failure> {
        let channel = build(
            Channel::builder(format!("xds:///{SERVICE}"))
                .bootstrap(self.bootstrap()?)
                .credentials(Credentials::xds(Credentials::insecure()))
                .certificate_provider(secured::INSTANCE, self.secured.client()),
        )?;
        self.events = Some(channel.events());
        Ok(Box::new(TestServiceClient::new(channel)))
    }

    /// The bootstrap that knows both control planes, in this order.
    fn bootstrap(&self) -> Result<Bootstrap, Failure> {
        servers(&self.control_planes)
            .build()
            .map_err(|invalid| Failure::failed(format!("the demo's bootstrap: {invalid}")))
    }

    /// Puts the present configuration into force at both control planes.
    fn announce(&self) {
        let mut snapshot = Snapshot::builder()
            .listener(resources::listener(SERVICE, resources::rds(ROUTES)))
            .route(resources::route(ROUTES, self.route.name()));
        snapshot = self.secured.announce(snapshot);
        for (cluster, names) in &self.endpoints {
            let addresses = names.iter().map(|name| match self.backends.get(name) {
                Some(backend) => backend.addr().to_string(),
                None => self.secured.address(name).map_or_else(|| format!("{name}:80"), |address| address.to_string()),
            });
            let resource = resources::eds_cluster(cluster.name());
            let resource = match cluster {
                Cluster::Blue | Cluster::Green | Cluster::Amber => resource,
                Cluster::Violet => resources::with_mtls(resource, secured::INSTANCE, [secured::wanted()]),
            };
            snapshot = snapshot.cluster(resource).endpoints(resources::endpoints(cluster.name(), addresses));
        }
        let snapshot: Snapshot = snapshot.build();
        for server in &self.control_planes {
            server.control_plane().set(snapshot.clone());
        }
    }

    fn primary(&self) -> &Server {
        let [primary, _] = &self.control_planes;
        primary
    }

    fn backend(&mut self, name: &str) -> Result<&mut Backend, Failure> {
        self.backends
            .get_mut(name)
            .ok_or_else(|| Failure::failed(format!("the script names an unknown backend, {name}")))
    }
}

impl Stage for Mesh {
    async fn act(&mut self, act: Act) -> Result<(), Failure> {
        match act {
            Act::Endpoints(cluster, names) => {
                self.endpoints.insert(cluster, names);
                self.announce();
            }
            Act::KillBackend(name) => self.backend(name)?.stop().await,
            Act::RestoreBackend(name) => {
                self.backend(name)?.restart().await.map_err(|error| no_port(name, &error))?;
            }
            Act::KillControlPlanes => {
                for server in &self.control_planes {
                    server.stop().await;
                }
            }
            Act::RestoreControlPlanes(route) => {
                self.route = route;
                self.announce();
                for server in &self.control_planes {
                    server.start().map_err(|error| no_port("a control plane", &error))?;
                }
            }
            Act::DoomPrimary(cluster) => self.primary().faults().die_on_request(TypeUrl::CLUSTER, cluster.name()),
            Act::RestorePrimary => {
                self.primary().faults().heal();
                self.primary().start().map_err(|error| no_port("the primary control plane", &error))?;
            }
            Act::Announce(cluster) => {
                self.endpoints.insert(cluster, cluster.first_endpoints());
                self.route = cluster;
                self.announce();
            }
            Act::Rotate(name) => self.secured.rotate(name).await?,
        }
        Ok(())
    }

    async fn said(&mut self) -> Option<Said> {
        let primary = self.primary().addr().to_string();
        let role = |uri: &str| if uri == primary { "primary" } else { "fallback" };
        loop {
            let event = self.events.as_mut()?.next().await?;
            if let Some(said) = Said::of(&event, role) {
                return Some(said);
            }
        }
    }

    fn shows(&self, sight: Sight) -> bool {
        let [primary, fallback] = self.control_planes.each_ref().map(Server::stats);
        match sight {
            Sight::FallbackConnections(count) => fallback.open_connections == count,
            Sight::Rejection => primary.nacks > 0,
            Sight::Identities => self.secured.is_in_order(),
        }
    }
}

/// A bootstrap that knows both control planes, in this order.
fn servers(control_planes: &[Server; 2]) -> BootstrapBuilder {
    let servers = control_planes.iter().map(|server| ServerConfig::insecure(server.addr().to_string()));
    servers.fold(Bootstrap::builder().node(Node::new("mainstay-demo")), BootstrapBuilder::server)
}

fn no_port(name: &str, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot start {name}: {error}")).tip("the demo needs free ports on 127.0.0.1")
}

const ANY_PORT: &str = "127.0.0.1:0";
const SERVICE: &str = "demo";
const ROUTES: &str = "demo-routes";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpStream;

    use super::*;
    use crate::demo::{said::Heard, script::NOWHERE};

    #[tokio::test]
    async fn both_control_planes_announce_what_the_script_says() {
        let mut mesh = Mesh::start().await.unwrap();
        let version = |server: &Server| server.control_plane().version(&TypeUrl::ENDPOINTS);
        let before = version(&mesh.control_planes[0]);
        mesh.act(Act::Endpoints(Cluster::Blue, &["four"])).await.unwrap();
        for server in &mesh.control_planes {
            let snapshot = server.control_plane().snapshot().unwrap();
            assert!(snapshot.contains(&TypeUrl::LISTENER, "demo") && snapshot.contains(&TypeUrl::CLUSTER, "green"));
            assert_ne!(version(server), before);
            assert_eq!(version(server), version(&mesh.control_planes[0]));
        }
    }

    #[tokio::test]
    async fn what_is_killed_refuses_connections_until_it_returns() {
        let mut mesh = Mesh::start().await.unwrap();
        let two = mesh.backends["two"].addr();
        let planes = mesh.control_planes.each_ref().map(Server::addr);
        let routes = |mesh: &Mesh| mesh.control_planes[0].control_plane().version(&TypeUrl::ROUTE);
        let before = routes(&mesh);
        mesh.act(Act::KillBackend("two")).await.unwrap();
        mesh.act(Act::KillControlPlanes).await.unwrap();
        for addr in [two, planes[0], planes[1]] {
            assert!(TcpStream::connect(addr).await.is_err(), "{addr}");
        }
        mesh.act(Act::RestoreBackend("two")).await.unwrap();
        mesh.act(Act::RestoreControlPlanes(Cluster::Green)).await.unwrap();
        for addr in [two, planes[0], planes[1]] {
            assert!(TcpStream::connect(addr).await.is_ok(), "{addr}");
        }
        assert_ne!(routes(&mesh), before);
    }

    #[tokio::test]
    async fn the_client_is_heard_when_it_falls_back_returns_and_rejects() {
        let mut mesh = Mesh::start().await.unwrap();
        let _client = mesh.client().unwrap();
        let [primary, fallback] = mesh.control_planes.each_ref().map(Server::addr);
        let mut heard = Heard::default();
        mesh.hear(&mut heard, &format!("connected to {primary} (primary)")).await;
        assert!(mesh.shows(Sight::FallbackConnections(0)) && !mesh.shows(Sight::Rejection));

        // A71: the primary dies while something is missing.
        mesh.act(Act::DoomPrimary(Cluster::Amber)).await.unwrap();
        mesh.act(Act::Announce(Cluster::Amber)).await.unwrap();
        mesh.hear(&mut heard, &format!("{primary} (primary) is unreachable, next attempt ")).await;
        mesh.hear(&mut heard, &format!("fell back to {fallback} (fallback)")).await;
        mesh.hear(&mut heard, &format!("connected to {fallback} (fallback)")).await;
        assert!(mesh.shows(Sight::FallbackConnections(1)));

        mesh.act(Act::RestorePrimary).await.unwrap();
        mesh.hear(&mut heard, &format!("returned to {primary} (primary)")).await;
        let mut events = mesh.control_planes[1].events();
        while !mesh.shows(Sight::FallbackConnections(0)) {
            events.next().await.unwrap();
        }

        mesh.act(Act::Endpoints(Cluster::Amber, &[NOWHERE])).await.unwrap();
        let mut events = mesh.primary().events();
        mesh.hear(&mut heard, &format!("rejected 1 of 1 ClusterLoadAssignment of {primary} (primary), version ")).await;
        let reason = heard.lines().last().unwrap();
        assert!(reason.ends_with("\"nowhere\" is not an IPv4 or IPv6 address"), "{reason}");
        while !mesh.shows(Sight::Rejection) {
            events.next().await.unwrap();
        }
    }

    #[tokio::test]
    async fn the_bootstrap_names_the_primary_first() {
        let mesh = Mesh::start().await.unwrap();
        let bootstrap = mesh.bootstrap().unwrap();
        let uris: Vec<_> = bootstrap.server_uris().collect();
        assert_eq!(uris, mesh.control_planes.each_ref().map(|server| server.addr().to_string()));
    }

    impl Mesh {
        /// Listens until a line begins like this.
        async fn hear(&mut self, heard: &mut Heard, beginning: &str) {
            while !heard.lines().last().is_some_and(|line| line.starts_with(beginning)) {
                let said = tokio::time::timeout(PATIENCE, self.said()).await.expect(beginning);
                let said = said.expect("the client lives");
                heard.note(said);
            }
        }
    }

    /// Far more than any backoff here: it only keeps a broken test from hanging.
    const PATIENCE: Duration = Duration::from_secs(30);
}
