//! The admin services of this process, on a port of their own.

use std::net::SocketAddr;

use tokio::{net::TcpListener, task::JoinHandle};
use tonic::transport::{Server, server::TcpIncoming};

use crate::{failure::Failure, listen};

/// A running server; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Admin(JoinHandle<()>);

/// Serves CSDS and channelz at `address` and says where on standard error.
pub(crate) async fn serve(address: SocketAddr) -> Result<Admin, Failure> {
    let failed = |error| listen::failure(address, &error);
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    anstream::eprintln!("admin: CSDS on {}", listener.local_addr().map_err(failed)?);
    let server = Server::builder().add_service(mainstay::admin::csds()).add_service(mainstay::admin::channelz());
    let serving = server.serve_with_incoming(TcpIncoming::from(listener));
    Ok(Admin(tokio::spawn(async {
        if let Err(error) = serving.await {
            anstream::eprintln!("admin: {error}");
        }
    })))
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.0.abort();
    }
}
