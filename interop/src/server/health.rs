//! The server's health, as drivers set it (I-18).

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use mainstay_testservice::proto::hook_request::HookRequestCommand;
use mainstay_testservice::proto::hook_service_server::HookServiceServer;
use mainstay_testservice::proto::xds_update_health_service_server::XdsUpdateHealthService;
use mainstay_testservice::proto::{Empty, HookRequest, HookResponse};
use tokio::task::AbortHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::hook::Hook;
use crate::admin::{self, Addresses};

/// Sets the health that the health service tells. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    reporter: Arc<OnceLock<HealthReporter>>,
    hook_server: Arc<Mutex<Option<HookServer>>>,
}

/// A hook server on a port of its own. Dropping it ends it.
#[derive(Debug)]
struct HookServer {
    hook: Hook,
    serving: AbortHandle,
}

impl Health {
    /// Says who is to be told.
    pub(crate) fn report_to(&self, reporter: HealthReporter) {
        // A second one would be a second server, which has a health of its own.
        let _ = self.reporter.set(reporter);
    }

    async fn set(&self, status: ServingStatus) -> Result<Response<Empty>, Status> {
        let reporter = self.reporter.get().ok_or_else(|| Status::unavailable("the server has not begun"))?;
        for service in ["", "grpc.testing.TestService", "grpc.testing.XdsUpdateHealthService"] {
            reporter.set_service_status(service, status).await;
        }
        Ok(Response::new(Empty {}))
    }

    async fn start_hook_server(&self, port: i32) -> Result<(), Status> {
        let port = u16::try_from(port)
            .map_err(|_| Status::invalid_argument(format!("server_port {port}: expected 0 to 65535")))?;
        let listener = admin::listen(port, Addresses::Both).await?;
        let hook = Hook::default();
        let router = tonic::transport::Server::builder().add_service(HookServiceServer::new(hook.clone()));
        let serving = tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener))).abort_handle();
        self.replace_hook_server(Some(HookServer { hook, serving }));
        Ok(())
    }

    fn replace_hook_server(&self, server: Option<HookServer>) {
        *self.hook_server.lock().unwrap_or_else(PoisonError::into_inner) = server;
    }
}

#[tonic::async_trait]
impl XdsUpdateHealthService for Health {
    async fn set_serving(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.set(ServingStatus::Serving).await
    }

    async fn set_not_serving(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.set(ServingStatus::NotServing).await
    }

    async fn send_hook_request(&self, request: Request<HookRequest>) -> Result<Response<HookResponse>, Status> {
        let request = request.into_inner();
        match request.command() {
            HookRequestCommand::Start => self.start_hook_server(request.server_port).await?,
            HookRequestCommand::Stop => self.replace_hook_server(None),
            HookRequestCommand::Return => {
                let server = self.hook_server.lock().unwrap_or_else(PoisonError::into_inner);
                let server = server.as_ref().ok_or_else(|| {
                    Status::failed_precondition("there is no hook server: send a request with command START first")
                })?;
                server.hook.set(request.grpc_code_to_return, request.grpc_status_description);
            }
            HookRequestCommand::Unspecified => {
                return Err(Status::invalid_argument("command: expected START, STOP or RETURN"));
            }
        }
        Ok(Response::new(HookResponse {}))
    }
}

impl Drop for HookServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
