//! ADS and LRS streams over HTTP/2: what the client core asks for, done with sockets.
//!
//! One task per stream. It takes a permit for a stream on a connection, opens the stream, passes bytes, and says what happened.
//! Streams to equal servers share connections, across all channels of the process, as far as the server allows.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::StreamExt;
use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::{CloseCause, Event, Protocol, Report, ServerState, ServerStatus, StreamId};
use tokio::time::Instant;

use crate::channelz_node::ChannelzNode;
use crate::dns::ResolveHost;
use crate::keep_alive::KeepAlive;
use crate::last_good::Store;
use crate::local_stream::LocalContext;
use crate::queue::{self, Closed};
use crate::task::Task;

mod connection;
mod exchange;
mod life;
mod local;
mod token;
mod wire;

#[cfg(test)]
mod tests;

use connection::{Connection, Peer, StreamPermit};
use exchange::{End, Exchange};
use life::Life;
use token::Tokens;
use wire::Receipt;

/// The streams of one channel, or of one server. What happens to them is put into the queue of its driver.
pub(crate) struct AdsStreams<I> {
    dns: Arc<dyn ResolveHost>,
    limits: AdsLimits,
    local: LocalContext,
    events: queue::Sender<I>,
    streams: BTreeMap<(Service, StreamId), OpenStream>,
    /// The last ADS stream to a server, after its end, until the next one has a connection: it may be the same.
    ended: HashMap<Arc<ServerConfig>, OpenStream>,
    tokens: Tokens,
    /// The channelz node of each server since it was last idle; a stream is a call (I-24).
    channelz: HashMap<Arc<ServerConfig>, Arc<ChannelzNode>>,
}

/// What a stream is for. Each has stream ids of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Service {
    /// Resources.
    Ads,
    /// Load reports.
    Lrs,
}

/// News of a stream, as an input of whoever opened it.
pub(crate) trait StreamInput: Send + 'static {
    fn of(service: Service, event: Event) -> Self;
}

/// Bounds on what an xDS server may do to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdsLimits {
    pub(crate) max_response_size: usize,
    pub(crate) keep_alive: KeepAlive,
}

impl Default for AdsLimits {
    fn default() -> Self {
        let keep_alive = KeepAlive { interval: Duration::from_secs(300), timeout: Duration::from_secs(20) };
        Self { max_response_size: 256 << 20, keep_alive }
    }
}

struct OpenStream {
    server: Arc<ServerConfig>,
    commands: UnboundedSender<Command>,
    _task: Task,
}

/// What a stream is told to do.
enum Command {
    Send(Bytes),
    Probe { call: bool },
}

// === impl AdsStreams ===

impl<I: StreamInput> AdsStreams<I> {
    pub(crate) fn new(
        dns: Arc<dyn ResolveHost>,
        limits: AdsLimits,
        local: LocalContext,
        events: queue::Sender<I>,
    ) -> Self {
        let (streams, tokens) = (BTreeMap::new(), Tokens::default());
        Self { dns, limits, local, events, streams, ended: HashMap::new(), tokens, channelz: HashMap::new() }
    }

    pub(crate) fn open(
        &mut self,
        service: Service,
        id: StreamId,
        server: Arc<ServerConfig>,
        connect_timeout: Duration,
    ) {
        self.open_method(service, service.method(), id, server, connect_timeout);
    }

    /// Opens an ADS stream of the variant that is asked for.
    pub(crate) fn open_ads(
        &mut self,
        protocol: Protocol,
        id: StreamId,
        server: Arc<ServerConfig>,
        connect_timeout: Duration,
    ) {
        let method = match protocol {
            Protocol::Sotw => Service::Ads.method(),
            Protocol::Delta => DELTA_METHOD,
        };
        self.open_method(Service::Ads, method, id, server, connect_timeout);
    }

    fn open_method(
        &mut self,
        service: Service,
        method: &'static str,
        id: StreamId,
        server: Arc<ServerConfig>,
        connect_timeout: Duration,
    ) {
        let (commands, queue) = unbounded();
        let stream = StreamTask {
            service,
            method,
            id,
            channelz: self.channelz.entry(server.clone()).or_insert_with(|| Arc::new(ChannelzNode::new())).clone(),
            peer: Peer { server: server.clone(), keep_alive: self.limits.keep_alive, dns: self.dns.clone() },
            connect_timeout,
            max_response_size: self.limits.max_response_size,
            events: self.events.clone(),
            tokens: self.tokens.clone(),
            local: self.local.clone(),
        };
        let before = if service == Service::Ads { self.ended.remove(&server) } else { None };
        let task = Task::spawn(async move {
            let (cause, connection) = if stream.peer.server.is_local() {
                drop(before);
                (stream.run_local(queue).await, None)
            } else {
                stream.run(queue, before).await
            };
            // The driver may be gone: then nobody needs to know.
            let _ = stream.tell(Event::Closed(stream.id, cause)).await;
            if let Some(connection) = connection {
                tokio::time::sleep(LINGER).await;
                drop(connection);
            }
        });
        self.streams.insert((service, id), OpenStream { server, commands, _task: task });
    }

    pub(crate) fn send(&mut self, service: Service, id: StreamId, message: Bytes) {
        self.command(service, id, Command::Send(message));
    }

    /// Asks the server of an ADS stream for a sign of life.
    pub(crate) fn probe(&mut self, id: StreamId, call: bool) {
        self.command(Service::Ads, id, Command::Probe { call });
    }

    pub(crate) fn close(&mut self, service: Service, id: StreamId) {
        self.streams.remove(&(service, id));
    }

    /// An ADS stream said that it is over.
    pub(crate) fn ended(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.remove(&(Service::Ads, id)) {
            self.ended.insert(Arc::clone(&stream.server), stream);
        }
    }

    /// Enters what happened into the channelz node of a server.
    pub(crate) fn note(&self, server: &Arc<ServerConfig>, report: &Report) {
        if let Some(channelz) = self.channelz.get(server) {
            channelz.note(report);
        }
    }

    /// Lets go of the channelz nodes of the servers that nobody needs any more.
    pub(crate) fn forget_idle(&mut self, servers: &[ServerStatus]) {
        let in_use = |wanted: &Arc<ServerConfig>| {
            servers.iter().any(|server| server.server == *wanted && server.state != ServerState::Idle)
        };
        self.channelz.retain(|server, _| in_use(server));
        self.ended.retain(|server, _| in_use(server));
    }

    /// The last-good files of the client.
    pub(crate) fn last_good(&self) -> Option<&Arc<Store>> {
        self.local.last_good.as_ref()
    }

    pub(crate) fn channelz(&self) -> HashMap<Arc<ServerConfig>, Arc<ChannelzNode>> {
        self.channelz.clone()
    }

    fn command(&self, service: Service, id: StreamId, command: Command) {
        if let Some(stream) = self.streams.get(&(service, id)) {
            // A stream that has just ended says so itself.
            let _ = stream.commands.unbounded_send(command);
        }
    }
}

impl Service {
    fn method(self) -> &'static str {
        match self {
            Self::Ads => "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
            Self::Lrs => "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats", // C-66
        }
    }
}

const DELTA_METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// How long a connection is kept for another stream on which the one before was refused as unknown.
const LINGER: Duration = Duration::from_secs(1);

/// gRPC status code.
const UNIMPLEMENTED: u16 = 12;

/// One stream, from the first address to the last byte.
struct StreamTask<I> {
    service: Service,
    method: &'static str,
    id: StreamId,
    peer: Peer,
    connect_timeout: Duration,
    max_response_size: usize,
    events: queue::Sender<I>,
    tokens: Tokens,
    local: LocalContext,
    channelz: Arc<ChannelzNode>,
}

/// Messages of a stream that are not on the wire, in order. They outlive an attempt at a connection that takes no more
/// streams.
#[derive(Default)]
struct Unsent {
    messages: VecDeque<Bytes>,
    /// Since when the first one waits.
    since: Option<Instant>,
}

impl<I: StreamInput> StreamTask<I> {
    /// Runs to the end of the stream. `before` is let go of when there is a connection. Answers with that, too, if the
    /// next stream is likely to follow at once (DX-3).
    async fn run(
        &self,
        mut queue: UnboundedReceiver<Command>,
        mut before: Option<OpenStream>,
    ) -> (CloseCause, Option<Arc<Connection>>) {
        let (mut opened, mut unsent) = (false, Unsent::default());
        loop {
            let connect = async { tokio::try_join!(self.peer.permit(), self.tokens.bearer(&self.peer.server)) };
            let (permit, bearer) = match tokio::time::timeout(self.connect_timeout, connect).await {
                Ok(Ok(connected)) => connected,
                Ok(Err(cause)) => return (CloseCause::ConnectFailed(cause), None),
                Err(_) => {
                    let (server, timeout) = (&self.peer.server.server_uri, self.connect_timeout);
                    let cause = format!("no connection to {server} within {timeout:?}");
                    return (CloseCause::ConnectFailed(cause), None);
                }
            };
            drop(before.take());
            if !opened && self.tell(Event::Opened(self.id)).await.is_err() {
                return (gone(), None);
            }
            opened = true;
            let call = self.channelz.counters.begin();
            let end = match Exchange::open(&permit, self.method, bearer, self.max_response_size) {
                Ok(exchange) => self.pass_messages(&permit, exchange, &mut queue, &mut unsent).await,
                Err(end) => Ended { end, untouched: true },
            };
            if let CloseCause::Ended { code: 0, .. } = end.end.cause {
                call.succeed();
            }
            // The server had sent GOAWAY or had no room, which may show only when a stream is tried: that is no failure
            // of the server, which may take the stream on another connection.
            let is_lost = matches!(end.end.cause, CloseCause::ConnectionLost(_));
            if !(permit.is_shared && end.untouched && (is_lost || end.end.refused)) {
                let is_unknown_method = matches!(end.end.cause, CloseCause::Ended { code: UNIMPLEMENTED, .. });
                return (end.end.cause, is_unknown_method.then(|| permit.connection()));
            }
            permit.retire();
        }
    }

    /// Passes messages until the stream ends.
    async fn pass_messages(
        &self,
        permit: &StreamPermit,
        mut exchange: Exchange<'_>,
        queue: &mut UnboundedReceiver<Command>,
        unsent: &mut Unsent,
    ) -> Ended {
        let mut receipts: VecDeque<Receipt> = unsent.messages.iter().map(|message| exchange.send(message)).collect();
        let mut life = Life::new(&self.peer, permit);
        let mut untouched = true;
        loop {
            let event = tokio::select! {
                // What is sent is told before what is heard of it.
                biased;
                Some(command) = queue.next() => {
                    match command {
                        Command::Probe { call } => life.probe(call),
                        Command::Send(message) => {
                            receipts.push_back(exchange.send(&message));
                            unsent.push(message);
                        }
                    }
                    continue;
                }
                Some(heard) = written(&mut receipts) => {
                    untouched = false;
                    unsent.pop();
                    life.wrote(heard);
                    Event::Sent(self.id)
                }
                message = exchange.next() => match message {
                    Ok(message) => Event::Received(self.id, message),
                    Err(end) => return Ended { end, untouched },
                },
                sign = life.next_sign() => Event::Alive(self.id, sign),
                () = unsent.is_stuck(self.connect_timeout) => {
                    let cause = format!("no room for a request within {:?}", self.connect_timeout);
                    return Ended { end: End { cause: CloseCause::ConnectionLost(cause), refused: false }, untouched };
                }
            };
            if let Event::Received(..) = event {
                untouched = false;
            }
            if self.tell(event).await.is_err() {
                return Ended { end: End { cause: gone(), refused: false }, untouched };
            }
        }
    }

    /// The driver reads at its own pace: a flood of responses waits here, in the server's flow control.
    async fn tell(&self, event: Event) -> Result<(), Closed> {
        self.events.send(I::of(self.service, event)).await
    }
}

/// How an attempt at a stream ended.
struct Ended {
    end: End,
    /// Nothing was written and nothing was heard.
    untouched: bool,
}

// === impl Unsent ===

impl Unsent {
    fn push(&mut self, message: Bytes) {
        self.messages.push_back(message);
        self.since.get_or_insert_with(Instant::now);
    }

    /// The first one is on the wire.
    fn pop(&mut self) {
        self.messages.pop_front();
        self.since = (!self.messages.is_empty()).then(Instant::now);
    }

    /// Ends when a message has waited for so long: a server that makes no room is no better than one that is away.
    async fn is_stuck(&self, timeout: Duration) {
        match self.since {
            Some(since) => tokio::time::sleep_until(since + timeout).await,
            None => std::future::pending().await,
        }
    }
}

/// Comes when the first of the messages under way is on the wire. A message that never gets there waits for the end of
/// the stream.
async fn written(receipts: &mut VecDeque<Receipt>) -> Option<wire::Heard> {
    let heard = receipts.front_mut()?.await.ok()?;
    receipts.pop_front();
    Some(heard)
}

fn gone() -> CloseCause {
    CloseCause::Ended { code: 1, message: "the channel is gone".to_owned() }
}
