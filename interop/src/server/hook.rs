//! Calls that wait until they are told how to end.

use mainstay_testservice::proto::hook_service_server::HookService;
use mainstay_testservice::proto::{Empty, SetReturnStatusRequest};
use tokio::sync::watch;
use tonic::{Code, Request, Response, Status};

/// How calls end, once it is known. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Hook {
    status: watch::Sender<Option<Status>>,
}

impl Hook {
    /// Ends the calls that wait, and those that come.
    pub(crate) fn set(&self, code: i32, message: String) {
        self.status.send_replace(Some(Status::new(Code::from_i32(code), message)));
    }
}

impl Default for Hook {
    fn default() -> Self {
        Self { status: watch::Sender::new(None) }
    }
}

#[tonic::async_trait]
impl HookService for Hook {
    async fn hook(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        let mut changes = self.status.subscribe();
        let status = match changes.wait_for(Option::is_some).await {
            Ok(status) => status.clone(),
            Err(_) => None,
        };
        match status {
            Some(status) if status.code() == Code::Ok => Ok(Response::new(Empty {})),
            Some(status) => Err(status),
            None => Err(Status::unavailable("the hook server is gone")),
        }
    }

    async fn set_return_status(&self, request: Request<SetReturnStatusRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        self.set(request.grpc_code_to_return, request.grpc_status_description);
        Ok(Response::new(Empty {}))
    }

    async fn clear_return_status(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.status.send_replace(None);
        Ok(Response::new(Empty {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_hook_waits_for_its_status_and_waits_again_when_it_is_cleared() {
        // I-18
        let hook = Hook::default();
        let request = SetReturnStatusRequest { grpc_code_to_return: 5, grpc_status_description: "so".to_owned() };
        let (ended, set) =
            tokio::join!(hook.hook(Request::new(Empty {})), hook.set_return_status(Request::new(request)));
        assert!(set.is_ok());
        assert_eq!(ended.unwrap_err().code(), Code::NotFound);
        hook.clear_return_status(Request::new(Empty {})).await.unwrap();
        let mut waiting = Box::pin(hook.hook(Request::new(Empty {})));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        hook.set(0, String::new());
        assert!(waiting.await.is_ok());
    }
}
