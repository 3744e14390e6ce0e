//! The life of one RPC: decide, perhaps wait, send.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::SET_COOKIE;
use http::uri::Authority;
use http::{HeaderValue, StatusCode};
use http_body::Body as _;
use mainstay_lb::{
    CallTracker, Chosen, Decision, Effect, Ending, Failure, Injected, Origin, PushBack, Retry, RetryThrottle, Rpc,
};
use tokio::time::{Instant, Sleep};
use tonic::body::Body;
use tonic::{Code, Status};

use crate::body::{Held, ResponseBody};
use crate::channelz_node;
use crate::code;
use crate::connection::{Socket, WrongName};
use crate::deadline;
use crate::failure::{self, GRPC_STATUS};
use crate::hub::{ClusterRef, Hub};
use crate::peer::Peer;
use crate::process;
use crate::random::Random;
use crate::request::{Outgoing, Request};
use crate::shared::Halt;
use crate::stream::{Incoming, NoResponse, Response, Unsent};
use crate::telemetry::CallObserver;
use crate::tls::TlsInfo;

/// Carries one RPC to the headers of its response; the body does the rest.
///
/// What can be done at once is done before there is a future: each RPC has it in a box, and small boxes are cheap. For the
/// same reason whatever most RPCs do not need is in boxes of its own.
pub(crate) fn run(
    hub: Arc<Hub>,
    settings: CallSettings,
    mut request: http::Request<Body>,
) -> impl Future<Output = Result<http::Response<ResponseBody>, Status>> + Send {
    let timeout = deadline::requested(request.headers_mut());
    let wait_for_ready = request.extensions().get::<WaitForReady>().map(|wait| wait.0);
    let on_channel = hub.shared.channelz.counters.begin();
    let mut call = Call {
        start: timeout.map(|_| Instant::now()),
        timeout,
        wait_for_ready: wait_for_ready.unwrap_or(settings.wait_for_ready),
        retries: settings.retries,
        throttle: settings.retry_throttle,
        chosen: Chosen::default(),
        held: None,
        resumed: 0,
        retry: None,
        observer: hub.observer.begin(&request),
        hub,
    };
    // The response takes them over, emptied: whoever reads it finds the peer there, and no new map is made for it.
    let mut extensions = std::mem::take(request.extensions_mut());
    extensions.clear();
    let mut request = Request::new(request);
    async move {
        let (mut refused, mut returns) = (false, 0);
        loop {
            // In a block, so that nothing of it is kept while the RPC pauses.
            let next = {
                let sent = match call.attempt(&mut request).await {
                    Ok(exchanged) => call.judge(exchanged, &request),
                    Err(NotSent::Failed(status)) => Ok(Sent::Failed(status)),
                    Err(NotSent::Returned(address)) => Ok(Sent::Returned(address)),
                    // Only a filter ends an RPC well without sending it (S-52).
                    Err(NotSent::Final(status)) if status.code() == Code::Ok => {
                        on_channel.succeed();
                        call.observer.end(Code::Ok, "");
                        return Ok(status.into_http::<Body>().map(|_| ResponseBody::default()));
                    }
                    Err(NotSent::Final(status)) => Err(status),
                };
                match sent {
                    Ok(Sent::Answered(answer)) => match call.pause_after_answer(&answer, &mut request) {
                        Some((code, pause)) => Some((answer.end(code), pause)),
                        None => {
                            let upload = request.commit();
                            let Answer { mut response, timer, picked } = answer;
                            let Picked { address, origin, tls, tracker, on_subchannel, .. } = picked;
                            extensions.insert(Peer::endpoint(address, origin, tls));
                            extensions.extend(std::mem::take(response.extensions_mut()));
                            *response.extensions_mut() = extensions;
                            let observer = std::mem::take(&mut call.observer);
                            let throttle = call.throttle.take();
                            let held = Held { tracker, on_channel, on_subchannel, observer, throttle, upload };
                            return Ok(ResponseBody::of(response, address, timer, held));
                        }
                    },
                    // It never left, or never reached the application, as it met a GOAWAY: it is decided anew. An RPC
                    // that left is sent again only once, unless its policy allows more (A6).
                    Ok(Sent::Returned(address)) if returns < MAX_RETURNS => {
                        returns += 1;
                        call.observer.end_attempt(Code::Unavailable, &returned(address), true);
                        None
                    }
                    Ok(Sent::Refused(status)) if !refused => {
                        refused = true;
                        call.observer.end_attempt(status.code(), status.message(), true);
                        None
                    }
                    Ok(Sent::Returned(address)) => {
                        let text = format!("{}, {MAX_RETURNS} times over", returned(address));
                        Some(call.pause_after_failure(Status::unavailable(text), &mut request)?)
                    }
                    Ok(Sent::Refused(status) | Sent::Failed(status)) => {
                        Some(call.pause_after_failure(status, &mut request)?)
                    }
                    Err(status) => return Err(call.fail(status)),
                }
            };
            match next {
                // Whoever knows that the connection is gone may wait for this very thread.
                None if returns <= 1 => tokio::task::yield_now().await,
                // Or the system lets it wait.
                None => {
                    let pause = Duration::from_millis(1 << (returns - 2).min(6));
                    Box::pin(call.sleep(pause)).await;
                }
                Some((status, pause)) => {
                    call.observer.end_attempt(status.code(), status.message(), false);
                    if let Err(status) = Box::pin(call.pause(pause, status)).await {
                        return Err(call.fail(status));
                    }
                }
            }
        }
    }
}

/// Whether an RPC waits for a usable endpoint instead of failing when there is none.
///
/// Put it into the extensions of a request. It takes precedence over [`ChannelBuilder::wait_for_ready`].
///
/// [`ChannelBuilder::wait_for_ready`]: crate::ChannelBuilder::wait_for_ready
///
/// ```
/// let mut request = tonic::Request::new(());
/// request.extensions_mut().insert(mainstay::WaitForReady(true));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitForReady(pub bool);

/// What a channel says about all its RPCs.
#[derive(Clone, Debug)]
pub(crate) struct CallSettings {
    pub(crate) wait_for_ready: bool,
    /// Whether the retry policies of routes are followed.
    pub(crate) retries: bool,
    /// What stops retries while too many attempts fail.
    pub(crate) retry_throttle: Option<Arc<RetryThrottle>>,
}

struct Call {
    /// When it began. Most RPCs have no deadline and never look at the clock.
    start: Option<Instant>,
    /// What the caller asked for.
    timeout: Option<Duration>,
    wait_for_ready: bool,
    retries: bool,
    throttle: Option<Arc<RetryThrottle>>,
    /// What stands for all attempts (L-38).
    chosen: Chosen,
    /// Keeps the chosen cluster in the configuration while the RPC waits, and from then on.
    held: Option<ClusterRef>,
    /// How often the channel had to be brought back for it.
    resumed: u32,
    /// Made when the first attempt fails.
    retry: Option<Retry>,
    observer: CallObserver,
    hub: Arc<Hub>,
}

/// What was decided about an attempt, taken out of the snapshot. It goes with the attempt to its end.
struct Picked {
    address: SocketAddr,
    origin: Arc<Origin>,
    /// What the connection is secured with; known when the attempt is sent.
    tls: Option<Arc<TlsInfo>>,
    tracker: CallTracker,
    on_subchannel: channelz_node::Call,
    set_cookie: Option<HeaderValue>,
}

/// What it takes to send an attempt.
struct Way {
    socket: Arc<Socket>,
    authority: Option<Authority>,
    deadline: Option<Instant>,
    picked: Picked,
}

#[expect(
    clippy::large_enum_variant,
    reason = "the large one is the common one: a heap block for it would cost each RPC"
)]
enum Sent {
    Answered(Answer),
    /// The connection to this address was closed before the request left.
    Returned(SocketAddr),
    /// The endpoint said that it did not process the request.
    Refused(Status),
    /// The attempt failed, and another one may follow.
    Failed(Status),
}

/// Why there was no attempt, or why it is the last one.
enum NotSent {
    /// There is no endpoint to send it to.
    Failed(Status),
    /// The connection to this address was closed before it could be sent.
    Returned(SocketAddr),
    /// It was dropped, aborted, or its time is up: that is never tried again (L-50).
    Final(Status),
}

/// The headers of a response, and what its body goes on with.
struct Answer {
    response: http::Response<Incoming>,
    timer: Option<Pin<Box<Sleep>>>,
    picked: Picked,
}

enum Step {
    Go(Way),
    Wait(Failure),
    Inject(Vec<Injected>),
}

impl Call {
    /// Sends the request as the newest snapshot says. Where it must wait for another one, it does so in a box.
    fn attempt<'a>(&'a mut self, request: &'a mut Request) -> Attempt<'a> {
        match self.decide(request.rpc()) {
            Ok(Step::Go(way)) if way.socket.requests.has_room() => match self.send(way, request) {
                Ok(exchange) => Attempt::Sent(exchange),
                Err(failure) => Attempt::NotSent(Some(failure)),
            },
            other => Attempt::Waits(Box::pin(self.attempt_later(other, request))),
        }
    }

    async fn attempt_later(
        &mut self,
        step: Result<Step, NotSent>,
        request: &mut Request,
    ) -> Result<Exchanged, NotSent> {
        let way = match step {
            Ok(Step::Go(way)) => Ok(way),
            Ok(Step::Wait(_)) => self.wait(request.rpc()).await,
            Ok(Step::Inject(effects)) => {
                self.inject(effects).await?;
                self.wait(request.rpc()).await
            }
            Err(failure) => Err(failure),
        };
        if way.is_err() {
            // A caller that tries again and again must leave time for the connections to be made.
            tokio::task::coop::consume_budget().await;
        }
        let exchange = self.send_in_turn(way?, request).await?;
        Ok(exchange.await)
    }

    async fn wait(&mut self, rpc: Rpc<'_>) -> Result<Way, NotSent> {
        self.start();
        // Listen first, then look again: a snapshot that came in between is not missed.
        let mut published = self.hub.shared.published.subscribe();
        loop {
            published.mark_unchanged();
            let reason = match self.decide(rpc)? {
                Step::Go(way) => return Ok(way),
                Step::Wait(reason) => reason,
                Step::Inject(effects) => {
                    self.inject(effects).await?;
                    continue;
                }
            };
            self.resume()?;
            self.hold();
            let next = published.changed();
            match self.deadline(self.chosen.limit()) {
                None => drop(next.await),
                Some(at) => {
                    if tokio::time::timeout_at(at, next).await.is_err() {
                        let text = format!("before it could be sent: {}", self.explain(&reason));
                        return Err(NotSent::Final(self.expired(&text)));
                    }
                }
            }
        }
    }

    /// Brings back a channel that does not run. RPCs that wait for ready wait for that, too.
    fn resume(&mut self) -> Result<(), NotSent> {
        if self.hub.shared.halt.load().is_none() {
            return Ok(());
        }
        self.held = None; // The driver that held it is gone.
        self.resumed += 1;
        match self.hub.resume() {
            Ok(()) if self.resumed <= MAX_RESUMES => Ok(()),
            Ok(()) => Err(NotSent::Failed(self.halted(&Halt::RuntimeEnded))),
            Err(_) if self.wait_for_ready => Ok(()),
            Err(halt) => Err(NotSent::Failed(self.halted(&halt))),
        }
    }

    fn halted(&self, halt: &Halt) -> Status {
        Status::unavailable(format!("RPC to {}: {halt}", self.hub.target()))
    }

    /// Does to the RPC what the filters of its route say, as long as the process has not too many faults at work.
    async fn inject(&mut self, effects: Vec<Injected>) -> Result<(), NotSent> {
        for Injected { effect, max_active } in effects {
            let Some(_active) = process::ACTIVE_FAULTS.try_acquire(max_active) else { continue };
            match effect {
                Effect::Delay(time) => {
                    if !self.sleep(time).await {
                        return Err(NotSent::Final(self.expired("while a fault filter held it up")));
                    }
                }
                Effect::Abort(code) => {
                    let text = format!("RPC to {} was aborted by a fault filter", self.hub.target());
                    return Err(NotSent::Final(Status::new(code::to_tonic(code), text)));
                }
            }
        }
        Ok(())
    }

    /// Keeps the chosen cluster in the configuration (L-27).
    fn hold(&mut self) {
        if let Some(cluster) = self.chosen.cluster()
            && !self.held.as_ref().is_some_and(|held| held.is_of(cluster))
        {
            self.held = Some(ClusterRef::new(&self.hub, cluster));
        }
    }

    fn decide(&mut self, rpc: Rpc<'_>) -> Result<Step, NotSent> {
        let snapshot = self.hub.shared.snapshot.load();
        match snapshot.decide_again(rpc, &mut self.chosen, &mut Random) {
            Decision::Send(to) => {
                let address = to.subchannel.address();
                let socket = match to.subchannel.socket_as(to.authority) {
                    Some(Ok(socket)) => socket,
                    None => {
                        // It went away this very moment; the next snapshot knows.
                        to.tracker.withdraw();
                        return Ok(Step::Wait(Failure::unavailable(format!("connection to {address} was lost"))));
                    }
                    Some(Err(WrongName)) => {
                        to.tracker.withdraw();
                        let name = to.authority.unwrap_or_default();
                        return Err(NotSent::Failed(Status::unavailable(format!(
                            "RPC to {}: cluster {:?} asks for :authority {name:?}, and the certificate of {address} \
                             does not have that name",
                            self.hub.target(),
                            to.cluster
                        ))));
                    }
                };
                for wake in to.keep.into_iter().chain(to.wake) {
                    self.hub.driver.wake(wake);
                }
                self.observer.pick(to.origin);
                Ok(Step::Go(Way {
                    socket,
                    authority: to.authority.and_then(|authority| Authority::try_from(authority).ok()),
                    deadline: self.deadline(to.limit),
                    picked: Picked {
                        address,
                        origin: Arc::clone(to.origin),
                        tls: None,
                        tracker: to.tracker,
                        on_subchannel: to.subchannel.begin(),
                        set_cookie: to.set_cookie,
                    },
                }))
            }
            Decision::Wait(reason, wake) => {
                if let Some(wake) = wake {
                    self.hub.driver.wake(wake);
                }
                self.observer.wait(&reason);
                Ok(Step::Wait(reason))
            }
            Decision::Fail(reason) if self.wait_for_ready => {
                self.observer.wait(&reason);
                Ok(Step::Wait(reason))
            }
            Decision::Fail(reason) => {
                self.observer.give_up(&reason);
                Err(NotSent::Failed(self.failed(&reason)))
            }
            Decision::Drop(reason) => {
                self.observer.give_up(&reason);
                Err(NotSent::Final(self.failed(&reason)))
            }
            Decision::Inject(effects) => Ok(Step::Inject(effects)),
        }
    }

    /// Hands the request to its connection.
    fn send(&mut self, way: Way, request: &mut Request) -> Result<Exchange, NotSent> {
        match self.outgoing(&way, request) {
            Ok(outgoing) => {
                let sent = way.socket.requests.send(outgoing);
                self.exchange(way, sent, request)
            }
            Err(status) => Err(way.give_up(NotSent::Final(status))),
        }
    }

    /// The same when the endpoint has a stream for it.
    async fn send_in_turn(&mut self, way: Way, request: &mut Request) -> Result<Exchange, NotSent> {
        let socket = way.socket.clone();
        let address = way.picked.address;
        let turn = socket.requests.turn();
        let turn = match way.deadline {
            None => turn.await,
            Some(at) => match tokio::time::timeout_at(at, turn).await {
                Ok(turn) => turn,
                Err(_) => {
                    way.picked.tracker.end(Ending { code: code::of_tonic(Code::DeadlineExceeded), trailers: None });
                    let cluster = &way.picked.origin.cluster;
                    let text = format!("while {address} of cluster {cluster:?} had no stream left for it");
                    return Err(NotSent::Final(self.expired(&text)));
                }
            },
        };
        let Ok(turn) = turn else { return Err(way.give_up(NotSent::Returned(address))) };
        // Only now: it says how much time is left.
        match self.outgoing(&way, request) {
            Ok(outgoing) => self.exchange(way, turn.send(outgoing), request),
            Err(status) => Err(way.give_up(NotSent::Final(status))),
        }
    }

    /// The request as it goes this way.
    fn outgoing(&mut self, way: &Way, request: &mut Request) -> Result<Outgoing, Status> {
        let left = way.deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(self.expired("before it could be sent"));
        }
        let authority = way.authority.as_ref().unwrap_or(&self.hub.authority).clone();
        let previous = self.retry.as_ref().map_or(0, Retry::previous_attempts);
        let timeout = left.map(deadline::header_value);
        let Some(mut outgoing) = request.attempt(way.socket.scheme(), authority, timeout, previous) else {
            return Err(Status::unavailable("connection lost, and the request is too large to be sent again"));
        };
        let observer = self.observer.send(outgoing.head.headers_mut());
        outgoing.body.observe(observer);
        Ok(outgoing)
    }

    /// What follows when a request was handed over, or was not.
    fn exchange(
        &mut self,
        way: Way,
        sent: Result<Response, Unsent>,
        request: &mut Request,
    ) -> Result<Exchange, NotSent> {
        match sent {
            Ok(answer) => {
                let Way { socket, deadline, mut picked, .. } = way;
                picked.tls.clone_from(&socket.ends.tls);
                let timer = deadline.map(|at| Box::pin(tokio::time::sleep_until(at)));
                Ok(Exchange { answer, timer, picked: Some(picked) })
            }
            Err(Unsent::Malformed(_)) if request.strip_connection_headers() => self.send(way, request),
            Err(unsent) => {
                let address = way.picked.address;
                Err(way.give_up(match unsent {
                    Unsent::Closed => NotSent::Returned(address),
                    Unsent::Malformed(error) => NotSent::Final(Status::internal(format!("not a request: {error}"))),
                    Unsent::Broken(status) => NotSent::Final(status),
                }))
            }
        }
    }

    /// What became of a request. In line, as are those that poll for it: each of them would be a copy of the response.
    #[inline(always)]
    fn judge(&self, exchanged: Exchanged, request: &Request) -> Result<Sent, Status> {
        let Exchanged { answer, timer, mut picked } = exchanged;
        let address = picked.address;
        let Some(answer) = answer else {
            picked.tracker.end(Ending { code: code::of_tonic(Code::DeadlineExceeded), trailers: None });
            let cluster = &picked.origin.cluster;
            return Err(self.expired(&format!("while {address} of cluster {cluster:?} had not answered")));
        };
        match answer {
            // What is no answer of gRPC says no more than its code, whatever comes after the headers.
            Ok(response) if response.status() != StatusCode::OK && !response.headers().contains_key(&GRPC_STATUS) => {
                let http = response.status();
                let code = code::to_tonic(mainstay_xds::Code::of_http_status(http.as_u16()));
                picked.tracker.end(Ending { code: code::of_tonic(code), trailers: Some(response.headers()) });
                Ok(Sent::Failed(Status::new(
                    code,
                    format!("{address} answered with HTTP status {http}, not with gRPC"),
                )))
            }
            Ok(mut response) => {
                if let Some(cookie) = picked.set_cookie.take() {
                    response.headers_mut().append(SET_COOKIE, cookie);
                }
                Ok(Sent::Answered(Answer { response, timer, picked }))
            }
            Err(NoResponse::NeverLeft) => {
                picked.tracker.withdraw();
                Ok(Sent::Returned(address))
            }
            Err(NoResponse::Failed(error)) => {
                if let Some(status) = request.broken() {
                    picked.tracker.withdraw(); // The endpoint is not to blame.
                    return Err(status);
                }
                let refused = failure::is_refusal(&error);
                let failed = failure::transport(error, address);
                if refused {
                    picked.tracker.withdraw();
                    return Ok(Sent::Refused(failed));
                }
                picked.tracker.end(Ending { code: code::of_tonic(failed.code()), trailers: None });
                Ok(Sent::Failed(failed))
            }
        }
    }

    /// How long until the next attempt, and what became of this one, if the answer is nothing but a failure that the
    /// policy of the route takes for none (A6: real headers commit the RPC).
    fn pause_after_answer(&mut self, answer: &Answer, request: &mut Request) -> Option<(Code, Duration)> {
        self.chosen.retry_policy()?;
        let code = answer.failure()?;
        let pause = self.pause_after(code, PushBack::of(answer.response.headers()), request)?;
        Some((code, pause))
    }

    /// How long until the next attempt after one that failed; none if that was the last one.
    fn pause_after(&mut self, code: Code, push_back: PushBack, request: &mut Request) -> Option<Duration> {
        let policy = self.chosen.retry_policy().filter(|_| self.retries)?;
        let retry = self.retry.get_or_insert_with(|| Retry::new(policy.clone()));
        let pause = retry.after_failure(code::of_tonic(code), push_back, self.throttle.as_deref(), &mut Random)?;
        request.prepare_another().then_some(pause)
    }

    /// The same for an attempt without an answer; the end of the RPC if that was the last one.
    fn pause_after_failure(&mut self, status: Status, request: &mut Request) -> Result<(Status, Duration), Status> {
        match self.pause_after(status.code(), PushBack::None, request) {
            Some(pause) => Ok((status, pause)),
            None => Err(self.fail(status)),
        }
    }

    /// Waits before the next attempt.
    async fn pause(&mut self, pause: Duration, last: Status) -> Result<(), Status> {
        if self.sleep(pause).await {
            return Ok(());
        }
        Err(self.expired(&format!("before the next attempt; the last one: {}", last.message())))
    }

    /// Lets time pass; whether that was within the deadline of the whole RPC.
    async fn sleep(&mut self, time: Duration) -> bool {
        self.hold();
        let end = deadline::after(Instant::now(), time);
        let due = self.deadline(self.chosen.limit());
        match deadline::earlier(end, due) {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
        due.is_none_or(|due| end.is_some_and(|end| end < due))
    }

    /// The earlier of what the caller and the route allow (L-40).
    fn deadline(&mut self, limit: Option<Duration>) -> Option<Instant> {
        let timeout = self.timeout;
        let mut at = |timeout: Option<Duration>| timeout.and_then(|timeout| deadline::after(self.start(), timeout));
        deadline::earlier(at(timeout), at(limit))
    }

    fn start(&mut self) -> Instant {
        *self.start.get_or_insert_with(Instant::now)
    }

    /// Ends the RPC with this status.
    fn fail(&mut self, status: Status) -> Status {
        self.observer.end(status.code(), status.message());
        status
    }

    fn expired(&self, when: &str) -> Status {
        Status::deadline_exceeded(format!("RPC to {} ran out of time {when}", self.hub.target()))
    }

    /// What an RPC waited for, and where that stands.
    fn explain(&self, reason: &Failure) -> String {
        match self.hub.shared.progress.load().as_deref().filter(|_| reason.no_config) {
            Some(progress) => format!("{}; {progress}", reason.message),
            None => reason.message.clone(),
        }
    }

    fn failed(&self, reason: &Failure) -> Status {
        let context = if reason.no_config { "no usable configuration for" } else { "RPC to" };
        let text = format!("{context} {}: {}", self.hub.target(), reason.message);
        Status::new(code::to_tonic(reason.code), text)
    }
}

impl Answer {
    /// The status of a response that has nothing but a status, and that one not OK.
    fn failure(&self) -> Option<Code> {
        let code = match self.response.headers().get(&GRPC_STATUS) {
            Some(status) => Code::from_bytes(status.as_bytes()),
            None if self.response.body().is_end_stream() => Code::Unknown,
            None => return None,
        };
        (code != Code::Ok).then_some(code)
    }

    /// Ends the attempt as a failure.
    fn end(self, code: Code) -> Status {
        let headers = self.response.headers();
        self.picked.tracker.end(Ending { code: code::of_tonic(code), trailers: Some(headers) });
        let status = Status::from_header_map(headers).unwrap_or_else(|| Status::new(code, "no status"));
        Status::new(code, format!("{} of {}", status.message(), self.picked.address))
    }
}

/// An attempt to send a request, and to have an answer.
enum Attempt<'a> {
    Sent(Exchange),
    NotSent(Option<NotSent>),
    Waits(Pin<Box<dyn Future<Output = Result<Exchanged, NotSent>> + Send + 'a>>),
}

/// A request that waits for its answer, under its deadline. Dropped without one, be it by its deadline or by its caller, it
/// makes the endpoint suspect.
struct Exchange {
    answer: Response,
    timer: Option<Pin<Box<Sleep>>>,
    /// None when it was answered.
    picked: Option<Picked>,
}

/// A request that does not wait any more.
struct Exchanged {
    /// None if its time was up.
    answer: Option<Result<http::Response<Incoming>, NoResponse>>,
    timer: Option<Pin<Box<Sleep>>>,
    picked: Picked,
}

impl Future for Attempt<'_> {
    type Output = Result<Exchanged, NotSent>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Sent(exchange) => Pin::new(exchange).poll(cx).map(Ok),
            Self::NotSent(failure) => Poll::Ready(Err(failure.take().expect("polled once"))),
            Self::Waits(attempt) => attempt.as_mut().poll(cx),
        }
    }
}

impl Future for Exchange {
    type Output = Exchanged;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let answer = match Pin::new(&mut this.answer).poll(cx) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => {
                let Some(timer) = &mut this.timer else { return Poll::Pending };
                ready!(timer.as_mut().poll(cx));
                this.answer.suspect();
                None
            }
        };
        let picked = this.picked.take().expect("polled to its end once");
        Poll::Ready(Exchanged { answer, timer: this.timer.take(), picked })
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if self.picked.is_some() {
            self.answer.suspect();
        }
    }
}

impl Way {
    /// Nothing was sent this way.
    fn give_up(self, failure: NotSent) -> NotSent {
        self.picked.tracker.withdraw();
        failure
    }
}

fn returned(address: SocketAddr) -> String {
    format!("connection to {address} closed before the request left")
}

/// How often an RPC brings back its channel. It ends again at once on a runtime that is about to end.
const MAX_RESUMES: u32 = 3;

/// How often an RPC that never left is sent again, in half a second or so. The connection that returns it is gone from the
/// next snapshot, so that once is nearly always enough.
const MAX_RETURNS: u32 = 16;
