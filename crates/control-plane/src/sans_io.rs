//! What decides in a server, as plain values without sockets, tasks or clocks: who is let in, what is served, and what is
//! answered on a stream. Simulators of fleets run these with time of their own (SC-16); servers of this crate run the same code
//! over HTTP/2.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use prost::Message;

use crate::admission::{Bucket, Limits};
use crate::delta::Delta;
use crate::protocol::{Protocol, ProtocolError, RequestKind};
use crate::snapshot::Snapshot;
use crate::sotw::Sotw;
use crate::store::Store;

/// A server: what is in force, and how many streams may be opened.
///
/// ```
/// use std::time::{Duration, Instant};
/// use mainstay_control_plane::sans_io::{ServerCore, Turn};
/// use mainstay_control_plane::{Limits, Snapshot, resources};
///
/// let now = Instant::now();
/// let limits = Limits { streams_per_second: 1, stream_burst: 1, longest_wait: Duration::ZERO, ..Limits::default() };
/// let mut server = ServerCore::new(limits, now);
/// server.set(Snapshot::builder().cluster(resources::eds_cluster("a")));
/// assert_eq!(server.admit(now, &mut |_| 0), Turn::After(Duration::ZERO));
/// assert!(matches!(server.admit(now, &mut |_| 0), Turn::ComeBack(_)));
/// ```
#[derive(Debug)]
pub struct ServerCore {
    store: Store,
    limits: Limits,
    streams: Bucket,
}

/// What becomes of a stream that is to be opened (FB-32, FB-33).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is let in after this time.
    After(Duration),
    /// It is refused, and told to come back after this time.
    ComeBack(Duration),
}

impl ServerCore {
    /// A server that has nothing to serve yet.
    pub fn new(limits: Limits, now: Instant) -> Self {
        let streams = Bucket::new(limits.streams_per_second, limits.stream_burst, now);
        Self { store: Store::default(), limits, streams }
    }

    /// Puts a snapshot into force. Streams hear of it by [`StreamCore::handle_news`].
    pub fn set(&mut self, snapshot: impl Into<Snapshot>) {
        self.store.set(snapshot.into());
    }

    /// Whether a stream may be opened now. `draw` answers a number below its argument.
    pub fn admit(&mut self, now: Instant, draw: &mut dyn FnMut(u64) -> u64) -> Turn {
        match self.streams.take(now, self.limits.longest_wait) {
            Some(wait) => Turn::After(wait),
            None => Turn::ComeBack(self.limits.come_back(draw)),
        }
    }
}

/// The server's side of one stream.
pub struct StreamCore(Variant);

enum Variant {
    Sotw(Sotw),
    Delta(Delta),
}

/// Why a stream cannot go on: its request is not one, or asks for too much (FB-39).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRequest(String);

impl StreamCore {
    /// A stream of state of the world, or of the incremental variant, on which nothing was said yet. Numbers tell streams apart.
    pub fn new(number: u64, delta: bool) -> Self {
        let prefix = format!("{number}.");
        Self(if delta { Variant::Delta(Delta::new(prefix)) } else { Variant::Sotw(Sotw::new(prefix)) })
    }

    /// Takes in the bytes of a request.
    pub fn handle_request(&mut self, server: &ServerCore, bytes: &[u8]) -> Result<RequestKind, BadRequest> {
        fn read<M: Message + Default>(bytes: &[u8]) -> Result<M, BadRequest> {
            M::decode(bytes).map_err(|error| BadRequest(error.to_string()))
        }
        let said: Result<RequestKind, ProtocolError> = match &mut self.0 {
            Variant::Sotw(stream) => stream.handle_request(&read::<DiscoveryRequest>(bytes)?),
            Variant::Delta(stream) => stream.handle_request(&read::<DeltaDiscoveryRequest>(bytes)?),
        };
        let kind = said.map_err(|error| BadRequest(error.to_string()))?;
        self.handle_news(server);
        Ok(kind)
    }

    /// Takes in what is in force now.
    pub fn handle_news(&mut self, server: &ServerCore) {
        fn refresh(stream: &mut impl Protocol, store: &Store) {
            let Some(node_id) = stream.node_id() else { return };
            let view = store.view(None, node_id).map(Arc::clone);
            stream.handle_view(view);
        }
        match &mut self.0 {
            Variant::Sotw(stream) => refresh(stream, &server.store),
            Variant::Delta(stream) => refresh(stream, &server.store),
        }
    }

    /// The next response, as bytes.
    pub fn poll_response(&mut self) -> Option<Bytes> {
        let response = match &mut self.0 {
            Variant::Sotw(stream) => stream.poll_response(|_| true),
            Variant::Delta(stream) => stream.poll_response(|_| true),
        }?;
        let mut bytes = BytesMut::new();
        response.message.write(&mut bytes);
        Some(bytes.freeze())
    }

    /// Whether something is held back until the client answers.
    pub fn is_waiting(&self) -> bool {
        match &self.0 {
            Variant::Sotw(stream) => stream.is_waiting(),
            Variant::Delta(stream) => stream.is_waiting(),
        }
    }

    /// Goes one step on without the client's answer: servers do after five seconds.
    pub fn give_up_waiting(&mut self) {
        match &mut self.0 {
            Variant::Sotw(stream) => stream.give_up_waiting(),
            Variant::Delta(stream) => stream.give_up_waiting(),
        }
    }
}

impl fmt::Debug for StreamCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamCore").finish_non_exhaustive()
    }
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadRequest {}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3::Node;
    use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse};

    use super::*;
    use crate::resources;
    use crate::type_url::TypeUrl;

    #[test]
    fn streams_of_both_variants_answer_and_follow() {
        let node = Some(Node { id: "n".to_owned(), ..Node::default() });
        let type_url = TypeUrl::CLUSTER.as_str().to_owned();
        let sotw = DiscoveryRequest { node: node.clone(), type_url: type_url.clone(), ..DiscoveryRequest::default() };
        let delta = DeltaDiscoveryRequest { node, type_url, ..DeltaDiscoveryRequest::default() };
        for (delta, request) in [(false, sotw.encode_to_vec()), (true, delta.encode_to_vec())] {
            let count = |bytes: Bytes| match delta {
                false => DiscoveryResponse::decode(bytes).expect("a response").resources.len(),
                true => DeltaDiscoveryResponse::decode(bytes).expect("a response").resources.len(),
            };
            let mut server = ServerCore::new(Limits::default(), Instant::now());
            server.set(Snapshot::builder().cluster(resources::eds_cluster("a")));
            let mut stream = StreamCore::new(1, delta);
            assert_eq!(stream.handle_request(&server, &request), Ok(RequestKind::Subscribe));
            assert_eq!(stream.poll_response().map(count), Some(1));
            assert_eq!(stream.poll_response(), None);
            let two = Snapshot::builder().cluster(resources::eds_cluster("a")).cluster(resources::eds_cluster("b"));
            server.set(two);
            stream.handle_news(&server);
            assert!(stream.poll_response().map(count).is_some_and(|count| count == if delta { 1 } else { 2 }));
        }
    }

    #[test]
    fn what_is_no_request_is_refused_in_words() {
        let server = ServerCore::new(Limits::default(), Instant::now());
        let mut stream = StreamCore::new(1, false);
        let empty = stream.handle_request(&server, &[]).expect_err("no type");
        assert_eq!(empty.to_string(), "type_url is empty; an aggregated stream needs it in every request");
        assert!(stream.handle_request(&server, &[0xff]).is_err());
    }
}
