//! A server and a client that the control plane configures, over mTLS: it says who must prove what, and never sees a key.

use std::path::Path;

use mainstay::bootstrap::{Bootstrap, CertificateFiles, Node, ServerConfig};
use mainstay::{Channel, Credentials, Server, ServerCredentials};
use mainstay_control_plane::{ControlPlane, Snapshot, resources};
use mainstay_examples::hello::greeter_client::GreeterClient;
use mainstay_examples::hello::greeter_server::GreeterServer;
use mainstay_examples::{Error, Polite, request};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let plane = ControlPlane::new().serve("127.0.0.1:0").await?;
    let files = tempfile::tempdir()?;
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let bootstrap = |name: &str| -> Result<Bootstrap, Error> {
        // The bootstrap says where certificates are; resources call them "files".
        let files = certificates(&authority, name, files.path())?;
        let server = ServerConfig::insecure(plane.addr().to_string());
        let bootstrap = Bootstrap::builder().server(server).node(Node::new(name)).certificate_provider("files", files);
        Ok(bootstrap.server_listener_resource_name_template("server/%s").build()?)
    };

    let server = Server::builder()
        .bootstrap(bootstrap("hello.example")?)
        .credentials(ServerCredentials::xds(ServerCredentials::insecure()))
        .require_xds_security(true)
        .add_service(GreeterServer::new(Polite("one")))
        .listen("127.0.0.1:0".parse()?)
        .start()?;
    let address = server.local_addresses()[0];
    let listener = resources::server_listener(format!("server/{address}"), address, resources::server_route("all"));
    let cluster = resources::eds_cluster("hello-servers");
    plane.control_plane().set(
        Snapshot::builder()
            .listener(resources::with_server_tls(listener, "files", true))
            .listener(resources::listener("hello", resources::rds("hello-routes")))
            .route(resources::route("hello-routes", "hello-servers"))
            .cluster(resources::with_mtls(cluster, "files", ["hello.example"]))
            .endpoints(resources::endpoints("hello-servers", [address])),
    );

    let channel = Channel::builder("xds:///hello")
        .bootstrap(bootstrap("client.example")?)
        .credentials(Credentials::xds(Credentials::insecure()))
        .wait_for_ready(true) // the server waits for its Listener
        .build()?;
    let reply = GreeterClient::new(channel).say_hello(request("world")).await?;
    let peer = reply.extensions().get::<mainstay::Peer>().ok_or("no peer")?;
    println!("over TLS: {}, the server is {}", peer.tls().is_some(), peer.principal().unwrap_or("nobody"));
    println!("{}", reply.into_inner().message);
    server.shutdown().await;
    Ok(())
}

/// Writes a certificate with this name, its key and the authority.
fn certificates(
    authority: &CertifiedIssuer<'_, KeyPair>,
    name: &str,
    directory: &Path,
) -> Result<CertificateFiles, Error> {
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new([name.to_owned()])?.signed_by(&key, authority)?;
    let path = |end: &str| directory.join(format!("{name}.{end}"));
    std::fs::write(path("crt"), certificate.pem())?;
    std::fs::write(path("key"), key.serialize_pem())?;
    std::fs::write(path("ca"), authority.pem())?;
    Ok(CertificateFiles::default().with_ca_certificate_file(path("ca")).with_identity(path("crt"), path("key")))
}
