//! `mainstay soak --script listeners`: the Listener of a server is replaced again and again, while RPCs go on.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mainstay::{
    Channel, Peer, Running, Server,
    bootstrap::{Bootstrap, Node, ServerConfig},
};
use mainstay_control_plane::{ControlPlane, Server as ControlPlaneServer, Snapshot, resources};
use mainstay_testservice::proto::test_service_client::TestServiceClient;
use tonic::{Request, Status, service::interceptor::InterceptedService};

use super::{Act, FIRST_TIMEOUT, Stage, no_port};
use crate::{call::Caller, connect, failure::Failure};

/// A client and a server, whose connections are drained with each new Listener.
pub(super) struct Replacement {
    control_plane: ControlPlaneServer,
    running: Running,
    address: SocketAddr,
    /// How many Listeners there were.
    listeners: usize,
    /// The filter chain that the last RPC came by.
    seen: Arc<Mutex<Option<String>>>,
    /// How often the last RPC before a new Listener did not come by the one in force.
    late: usize,
}

impl Replacement {
    pub(super) async fn start() -> Result<Self, Failure> {
        let control_plane = ControlPlane::new().serve("127.0.0.1:0").await.map_err(|error| no_port(&error))?;
        let failed = |cause: String| Failure::failed(format!("cannot start the server: {cause}"));
        let seen: Arc<Mutex<Option<String>>> = Arc::default();
        let note = {
            let seen = seen.clone();
            move |request: Request<()>| -> Result<Request<()>, Status> {
                let chain = request.extensions().get::<Peer>().and_then(|peer| peer.filter_chain());
                *seen.lock().unwrap_or_else(PoisonError::into_inner) = chain.map(str::to_owned);
                Ok(request)
            }
        };
        let service = mainstay_testservice::service("one", "one").ok_or_else(|| failed("not a name".to_owned()))?;
        let running = Server::builder()
            .bootstrap(bootstrap(&control_plane, "server")?)
            .add_service(InterceptedService::new(service, note))
            .listen(SocketAddr::from(([127, 0, 0, 1], 0)))
            .start()
            .map_err(|error| failed(error.to_string()))?;
        let address = running.local_addresses().first().copied().ok_or_else(|| failed("no address".to_owned()))?;
        let mut stage = Self { control_plane, running, address, listeners: 0, seen, late: 0 };
        stage.replace();
        let mut states = stage.running.serving_state(address).ok_or_else(|| failed("no serving state".to_owned()))?;
        match tokio::time::timeout(FIRST_TIMEOUT, states.serving()).await {
            Ok(true) => Ok(stage),
            Ok(false) | Err(_) => Err(failed("it does not serve".to_owned())),
        }
    }

    fn replace(&mut self) {
        self.listeners += 1;
        let name = format!("server/{}", self.address);
        let mut listener = resources::server_listener(name, self.address, resources::server_route("server-routes"));
        if let Some(chain) = &mut listener.default_filter_chain {
            chain.name = self.chain();
        }
        let snapshot = Snapshot::builder()
            .listener(listener)
            .listener(resources::listener("service", resources::route("routes", "cluster")))
            .cluster(resources::eds_cluster("cluster"))
            .endpoints(resources::endpoints("cluster", [self.address]));
        self.control_plane.control_plane().set(snapshot);
    }

    /// The filter chain of the newest Listener.
    fn chain(&self) -> String {
        format!("chain {}", self.listeners)
    }

    fn is_in_force(&self) -> bool {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) == Some(self.chain())
    }
}

impl Stage for Replacement {
    fn client(&mut self) -> Result<Box<dyn Caller>, Failure> {
        let builder = Channel::builder("xds:///service").bootstrap(bootstrap(&self.control_plane, "client")?);
        Ok(Box::new(TestServiceClient::new(connect::build(builder)?)))
    }

    fn pause(&mut self) -> Duration {
        Duration::from_millis(200)
    }

    async fn act(&mut self) -> Result<Act, Failure> {
        self.late += usize::from(!self.is_in_force());
        self.replace();
        Ok(Act { kind: "new listener", what: format!("listener {}", self.listeners) })
    }

    async fn heal(&mut self) -> Result<Vec<String>, Failure> {
        let (late, listeners) = (self.late, self.listeners);
        Ok(vec![format!("  in force    {} of {listeners} Listeners after 200 ms at most", listeners - late)])
    }

    async fn end(self) {
        self.running.shutdown().await;
        self.control_plane.stop().await;
    }
}

fn bootstrap(control_plane: &ControlPlaneServer, node: &str) -> Result<Bootstrap, Failure> {
    let bootstrap = Bootstrap::builder()
        .node(Node::new(node))
        .server(ServerConfig::insecure(control_plane.addr().to_string()))
        .server_listener_resource_name_template("server/%s");
    bootstrap.build().map_err(|invalid| Failure::failed(format!("the bootstrap: {invalid}")))
}
