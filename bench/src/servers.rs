//! The servers that clients are measured against, in a process of their own.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};

use mainstay::bootstrap::{Bootstrap, Node, ServerConfig};
use mainstay_control_plane::{ControlPlane, Snapshot, resources};
use mainstay_testservice::Backend;

use crate::policy::Policy;
use crate::{Result, reporting};

/// A running process with a backend and a control plane. Ends when dropped.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) backend: SocketAddr,
    pub(crate) control_plane: SocketAddr,
    child: Child,
    /// Closed to end the process.
    input: Option<ChildStdin>,
}

/// The target that stands for the backend.
pub(crate) const TARGET: &str = "xds:///service";

/// How many more targets there are, called `target-0` and so on: the same backend under other names.
pub(crate) const TARGETS: usize = 512;

impl Servers {
    pub(crate) fn start() -> Result<Self> {
        let program = std::env::current_exe()?;
        let mut child = Command::new(program).arg("servers").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output of the servers")?).read_line(&mut line)?;
        let (backend, control_plane) = line.trim().split_once(' ').ok_or("the servers did not start")?;
        let (backend, control_plane) = (backend.parse()?, control_plane.parse()?);
        Ok(Self { backend, control_plane, input: child.stdin.take(), child })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// The process itself: prints its addresses and serves until its input ends.
pub(crate) fn run() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (_backend, _server) = runtime.block_on(async {
        let backend = Backend::spawn("127.0.0.1:0", "backend").await?;
        let control_plane = ControlPlane::new();
        let names = (0..TARGETS).map(|n| format!("target-{n}"));
        let snapshot = service(backend.addr())
            .resources(names.map(|name| resources::listener(name, resources::route("routes", "service"))));
        let reporting = ["a", "b", "c", "d"].map(reporting::start).into_iter().collect::<Result<Vec<_>>>()?;
        control_plane.set(Policy::ALL.iter().fold(snapshot, |snapshot, policy| policy.add_to(snapshot, &reporting)));
        let server = control_plane.serve("127.0.0.1:0").await?;
        println!("{} {}", backend.addr(), server.addr());
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>((backend, server))
    })?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// The resources of [`TARGET`].
pub(crate) fn service(backend: SocketAddr) -> mainstay_control_plane::SnapshotBuilder {
    Snapshot::builder()
        .listener(resources::listener("service", resources::rds("service")))
        .route(resources::route("service", "service"))
        .cluster(resources::eds_cluster("service"))
        .endpoints(resources::endpoints("service", [backend]))
}

/// A bootstrap with these xDS servers in order.
pub(crate) fn bootstrap(servers: &[SocketAddr]) -> Result<Bootstrap> {
    let mut builder = Bootstrap::builder().node(Node::new("bench"));
    for server in servers {
        builder = builder.server(ServerConfig::insecure(server.to_string()));
    }
    Ok(builder.build()?)
}
