//! The real world of the demo: backends and control planes on ports of this machine, all in this process.

use std::{collections::BTreeMap, sync::Arc};

use mainstay::bootstrap::{Bootstrap, BootstrapBuilder, Node, ServerConfig};
use mainstay_control_plane::{ControlPlane, Server, Snapshot, resources};
use mainstay_testservice::Backend;

use super::{
    play::Stage,
    script::{Act, BACKENDS, Cluster},
};
use crate::{
    call::Caller,
    connect::{Options, Target, connect},
    failure::Failure,
};

/// Everything that lives in the demo, except the client.
#[derive(Debug)]
pub(super) struct World {
    backends: BTreeMap<&'static str, Backend>,
    /// The primary and the fallback.
    control_planes: [Server; 2],
    /// What the control planes announce.
    route: Cluster,
    endpoints: BTreeMap<Cluster, &'static [&'static str]>,
}

impl World {
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
        let endpoints = Cluster::ALL.map(|cluster| (cluster, cluster.first_endpoints())).into();
        let world = Self { backends, control_planes, route: Cluster::Blue, endpoints };
        world.announce();
        Ok(world)
    }

    /// Who is who, for those who want to look in from outside.
    pub(super) fn describe(&self) -> String {
        let [primary, fallback] = self.control_planes.each_ref().map(Server::addr);
        let backends: Vec<_> =
            BACKENDS.iter().filter_map(|name| Some(format!("{name} {}", self.backends.get(name)?.addr()))).collect();
        format!("control planes: primary {primary}, fallback {fallback}\nbackends: {}", backends.join(", "))
    }

    /// The client whose traffic is watched.
    pub(super) fn client(&self) -> Result<Box<dyn Caller>, Failure> {
        let options = Options { wait_for_ready: false, bootstrap: Some(self.bootstrap()?) };
        connect(&Target::Xds(format!("xds:///{SERVICE}")), &options)
    }

    /// The bootstrap that knows both control planes, in this order.
    fn bootstrap(&self) -> Result<Arc<Bootstrap>, Failure> {
        let node = Node { id: "mainstay-demo".to_owned(), ..Node::default() };
        let servers = self.control_planes.iter().map(|server| ServerConfig::insecure(server.addr().to_string()));
        let builder = servers.fold(Bootstrap::builder().node(node), BootstrapBuilder::server);
        builder.build().map(Arc::new).map_err(|invalid| Failure::failed(format!("the demo's bootstrap: {invalid}")))
    }

    /// Puts the present configuration into force at both control planes.
    fn announce(&self) {
        let mut snapshot = Snapshot::builder()
            .listener(resources::listener(SERVICE, resources::rds(ROUTES)))
            .route(resources::route(ROUTES, self.route.name()));
        for (cluster, names) in &self.endpoints {
            let addresses = names.iter().filter_map(|name| self.backends.get(name)).map(Backend::addr);
            snapshot = snapshot
                .cluster(resources::eds_cluster(cluster.name()))
                .endpoints(resources::endpoints(cluster.name(), addresses));
        }
        let snapshot: Snapshot = snapshot.build();
        for server in &self.control_planes {
            server.control_plane().set(snapshot.clone());
        }
    }

    fn backend(&mut self, name: &str) -> Result<&mut Backend, Failure> {
        self.backends
            .get_mut(name)
            .ok_or_else(|| Failure::failed(format!("the script names an unknown backend, {name}")))
    }
}

impl Stage for World {
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
        }
        Ok(())
    }
}

fn no_port(name: &str, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot start {name}: {error}")).tip("the demo needs free ports on 127.0.0.1")
}

const ANY_PORT: &str = "127.0.0.1:0";
const SERVICE: &str = "demo";
const ROUTES: &str = "demo-routes";

#[cfg(test)]
mod tests {
    use mainstay_control_plane::TypeUrl;
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn both_control_planes_announce_what_the_script_says() {
        let mut world = World::start().await.unwrap();
        world.act(Act::Endpoints(Cluster::Blue, &["four"])).await.unwrap();
        for server in &world.control_planes {
            let snapshot = server.control_plane().snapshot().unwrap();
            assert!(snapshot.contains(&TypeUrl::LISTENER, "demo") && snapshot.contains(&TypeUrl::CLUSTER, "green"));
            assert_eq!(server.control_plane().version(&TypeUrl::ENDPOINTS).as_deref(), Some("2"));
        }
    }

    #[tokio::test]
    async fn what_is_killed_refuses_connections_until_it_returns() {
        let mut world = World::start().await.unwrap();
        let two = world.backends["two"].addr();
        let planes = world.control_planes.each_ref().map(Server::addr);
        world.act(Act::KillBackend("two")).await.unwrap();
        world.act(Act::KillControlPlanes).await.unwrap();
        for addr in [two, planes[0], planes[1]] {
            assert!(TcpStream::connect(addr).await.is_err(), "{addr}");
        }
        world.act(Act::RestoreBackend("two")).await.unwrap();
        world.act(Act::RestoreControlPlanes(Cluster::Green)).await.unwrap();
        for addr in [two, planes[0], planes[1]] {
            assert!(TcpStream::connect(addr).await.is_ok(), "{addr}");
        }
        assert_eq!(world.control_planes[0].control_plane().version(&TypeUrl::ROUTE).as_deref(), Some("2"));
    }

    #[tokio::test]
    async fn the_bootstrap_names_the_primary_first() {
        let world = World::start().await.unwrap();
        let bootstrap = world.bootstrap().unwrap();
        let uris: Vec<_> = bootstrap.servers.iter().map(|server| server.server_uri.clone()).collect();
        assert_eq!(uris, world.control_planes.each_ref().map(|server| server.addr().to_string()));
    }
}
