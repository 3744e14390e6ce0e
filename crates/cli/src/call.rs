//! One RPC and what became of it.

use std::{
    error::Error as StdError,
    pin::Pin,
    time::{Duration, SystemTime},
};

use mainstay_testservice::proto::{SimpleRequest, SimpleResponse, test_service_client::TestServiceClient};
use tokio::time::Instant;
use tonic::{
    Code, Request, Response, Status,
    body::Body,
    client::GrpcService,
    codegen::{Body as HttpBody, Bytes},
};

use crate::failure::in_words;

/// Whatever can send a `/grpc.testing.TestService/UnaryCall`: a channel of ours, a plain tonic channel, a fake.
pub(crate) trait Caller: Send {
    /// Begins a call. The caller is free for the next one at once.
    fn unary_call(&self, request: Request<SimpleRequest>) -> Answer;
}

/// What a call comes to.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Result<Response<SimpleResponse>, Status>> + Send>>;

impl<S> Caller for TestServiceClient<S>
where
    S: GrpcService<Body> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn StdError + Send + Sync>>,
    S::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <S::ResponseBody as HttpBody>::Error: Into<Box<dyn StdError + Send + Sync>> + Send,
{
    fn unary_call(&self, request: Request<SimpleRequest>) -> Answer {
        let mut client = self.clone();
        Box::pin(async move { TestServiceClient::unary_call(&mut client, request).await })
    }
}

/// A finished call.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Which of the targets was called.
    pub(crate) target: usize,
    /// When it began, for people and for other programs.
    pub(crate) began: SystemTime,
    /// When it began, by the clock that only goes forward.
    pub(crate) start: Instant,
    /// How long it took.
    pub(crate) took: Duration,
    /// The id of the server that answered, or the error.
    pub(crate) result: Result<String, CallError>,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallError {
    pub(crate) code: Code,
    pub(crate) message: String,
}

/// Makes one call, from now to its answer or its deadline.
pub(crate) fn begin(caller: &dyn Caller, target: usize, timeout: Duration) -> impl Future<Output = Outcome> + use<> {
    let mut request = Request::new(SimpleRequest { fill_server_id: true, ..SimpleRequest::default() });
    request.set_timeout(timeout);
    let began = SystemTime::now();
    let start = Instant::now();
    let answer = caller.unary_call(request);
    async move {
        let answer = tokio::time::timeout(timeout, answer).await;
        let took = start.elapsed();
        let result = match answer {
            Ok(Ok(response)) => Ok(response.into_inner().server_id),
            // tonic says CANCELLED when a deadline passes, on either side; gRPC says DEADLINE_EXCEEDED.
            Ok(Err(status)) if status.code() == Code::Cancelled && took >= timeout => Err(too_late(timeout)),
            Ok(Err(status)) => Err(CallError { code: status.code(), message: in_words(&status) }),
            Err(_) => Err(too_late(timeout)),
        };
        Outcome { target, began, start, took, result }
    }
}

fn too_late(timeout: Duration) -> CallError {
    CallError {
        code: Code::DeadlineExceeded,
        message: format!("no answer within {}", humantime::format_duration(timeout)),
    }
}

/// The name of a code as gRPC spells it.
pub(crate) fn code_name(code: Code) -> &'static str {
    mainstay_xds::Code::from_number(code as i32).unwrap_or(mainstay_xds::Code::Unknown).name()
}

#[cfg(test)]
pub(crate) mod fake {
    //! Callers without a network.

    use super::*;

    /// A caller from a function.
    pub(crate) struct Fake<F>(pub(crate) F);

    impl<F: Fn() -> Answer + Send> Caller for Fake<F> {
        fn unary_call(&self, _: Request<SimpleRequest>) -> Answer {
            self.0()
        }
    }

    /// A call that `server_id` answers after `delay`.
    pub(crate) fn answered(server_id: &str, delay: Duration) -> Answer {
        let response = SimpleResponse { server_id: server_id.to_owned(), ..SimpleResponse::default() };
        Box::pin(async move {
            tokio::time::sleep(delay).await;
            Ok(Response::new(response))
        })
    }

    /// A call that fails at once.
    pub(crate) fn failed(code: Code) -> Answer {
        Box::pin(async move { Err(Status::new(code, "fake")) })
    }

    /// A call that nobody answers.
    pub(crate) fn unanswered() -> Answer {
        Box::pin(std::future::pending())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        fake::{Fake, answered, failed, unanswered},
        *,
    };

    #[tokio::test(start_paused = true)]
    async fn an_answer_names_the_server_and_the_time_it_took() {
        let caller = Fake(|| answered("one", Duration::from_millis(30)));
        let outcome = begin(&caller, 7, TIMEOUT).await;
        assert_eq!((outcome.target, outcome.took), (7, Duration::from_millis(30)));
        assert_eq!(outcome.result, Ok("one".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_an_answer_ends_at_its_deadline() {
        // I-3
        let outcome = begin(&Fake(unanswered), 0, TIMEOUT).await;
        assert_eq!(outcome.took, TIMEOUT);
        assert_eq!(outcome.result.unwrap_err().code, Code::DeadlineExceeded);
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_is_the_deadline_only_when_it_has_passed() {
        let early = begin(&Fake(|| failed(Code::Cancelled)), 0, TIMEOUT).await;
        assert_eq!(early.result.unwrap_err().code, Code::Cancelled);
        let late = Fake(|| -> Answer {
            Box::pin(async {
                tokio::time::sleep(TIMEOUT).await;
                Err(Status::cancelled("Timeout expired"))
            })
        });
        assert_eq!(begin(&late, 0, TIMEOUT).await.result.unwrap_err().code, Code::DeadlineExceeded);
    }

    const TIMEOUT: Duration = Duration::from_secs(2);
}
