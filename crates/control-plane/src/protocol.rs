//! What both variants of ADS have in common on the server's side of a stream, without I/O: requests and views in, responses
//! out.

use std::collections::BTreeMap;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::{ControlPlane as ServerIdentity, Node};
use envoy_types::pb::envoy::service::discovery::v3::{ResourceError, ResourceName};
use envoy_types::pb::google::rpc::Status as RpcStatus;
use tonic::Code;

use crate::encoding::Encoded;
use crate::type_url::TypeUrl;
use crate::view::View;

/// The server's side of one stream.
pub(crate) trait Protocol: Send + 'static {
    type Request: prost::Message + Default + Send + 'static;

    /// A stream on which nothing was said yet. Nonces begin with the prefix, which should be different for each stream.
    fn new(nonce_prefix: String) -> Self;

    /// Takes a request in.
    fn handle_request(&mut self, request: &Self::Request) -> Result<RequestKind, ProtocolError>;

    /// What a request says.
    fn read(request: Self::Request) -> Said;

    /// Takes a new view in.
    fn handle_view(&mut self, view: Option<Arc<View>>);

    /// The next response, if there is one to send. A type to which `may_send` says no keeps its turn for later.
    fn poll_response(&mut self, may_send: impl FnMut(&TypeUrl) -> bool) -> Option<Response>;

    /// Whether something is held back until the client answers.
    fn is_waiting(&self) -> bool;

    /// Goes one step on without the client's answer, because it had time enough.
    fn give_up_waiting(&mut self);

    /// Whether clients that can be told of absent names are.
    fn tell_absence(&mut self, on: bool);

    /// The names that were found to be absent since this was last asked, each once per stream.
    fn take_absent(&mut self) -> Vec<(TypeUrl, String)>;

    /// A Listener that is asked for and unknown here, if nothing was answered yet and the client could only take it for one
    /// that does not exist (FB-3).
    fn unanswerable_listener(&self) -> Option<&str>;

    /// Who is at the other end; empty until the first request, and if that did not say.
    fn node_id(&self) -> Option<&str>;
}

/// What a request says, whatever the variant.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) node: Option<Node>,
    pub(crate) type_url: String,
    pub(crate) names: Vec<String>,
    pub(crate) unsubscribed: Vec<String>,
    pub(crate) claims: BTreeMap<String, String>,
    pub(crate) version: String,
    pub(crate) nonce: String,
    pub(crate) error: Option<RpcStatus>,
}

/// How a request was understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// It subscribes, or changes what is subscribed, and answers no response.
    Subscribe,
    /// It accepts the last response of its type; it may change what is subscribed, too.
    Ack,
    /// It rejects the last response of its type; it may change what is subscribed, too.
    Nack,
    /// It answers a response that is not the last one, so it was ignored (P-46); in the incremental variant what it
    /// changes counts all the same.
    Stale,
}

/// A response to send.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) type_url: TypeUrl,
    /// The names of the resources and errors in it.
    pub(crate) names: Arc<[String]>,
    /// The names that it says do not exist any more, in the incremental variant.
    pub(crate) removed: Arc<[String]>,
    /// `version_info`, or `system_version_info`.
    pub(crate) version: String,
    pub(crate) message: Encoded,
    /// Whether its body was encoded for it, and not shared with an earlier one.
    pub(crate) is_encoding: bool,
}

/// Why a stream cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error("type_url is empty; an aggregated stream needs it in every request")]
    NoTypeUrl,
    #[error("more than {MAX_TYPES} resource types on one stream")]
    TooManyTypes,
    #[error("more than {MAX_NAMES} names of {}", .0.short_name())]
    TooManyNames(TypeUrl),
    #[error("a name of {0} bytes, where {MAX_NAME_LENGTH} are allowed")]
    LongName(usize),
}

/// Whether nobody asks for more than anybody needs (FB-39).
pub(crate) fn check_names(type_url: &TypeUrl, names: &[String]) -> Result<(), ProtocolError> {
    if names.len() > MAX_NAMES {
        return Err(ProtocolError::TooManyNames(type_url.clone()));
    }
    let long = names.iter().map(String::len).find(|length| *length > MAX_NAME_LENGTH);
    long.map_or(Ok(()), |length| Err(ProtocolError::LongName(length)))
}

/// Whether a client says that it reads `resource_errors`. There is no feature for it that all know: to others an
/// otherwise empty response would mean something else, or nothing.
pub(crate) fn reads_errors(node: &Node) -> bool {
    node.client_features.iter().any(|feature| feature == READS_ERRORS)
}

/// An entry of `resource_errors`.
pub(crate) fn error(name: &str, code: Code, message: String) -> ResourceError {
    ResourceError {
        resource_name: Some(ResourceName { name: name.to_owned(), ..ResourceName::default() }),
        error_detail: Some(RpcStatus { code: code as i32, message, details: Vec::new() }),
    }
}

/// What is said of a name that is not in a partial view: an error that takes nothing away (P-60).
pub(crate) fn unknown(name: &str) -> ResourceError {
    let text = "it is not among what is held here, which says nothing of whether it exists";
    error(name, Code::Unavailable, text.to_owned())
}

/// Who we are. Of the deployment, not of the process: versions mean the same on every replica (DX-24).
pub(crate) fn identity() -> ServerIdentity {
    ServerIdentity { identifier: "mainstay".to_owned() }
}

/// The types whose resources say which clusters are used.
pub(crate) const ROUTING: [TypeUrl; 2] = [TypeUrl::LISTENER, TypeUrl::ROUTE];
pub(crate) const WILDCARD: &str = "*";
/// A client feature of our own.
pub(crate) const READS_ERRORS: &str = "mainstay.reads-resource-errors";
/// A stream with more types than this is not a client of ours (FB-39).
pub(crate) const MAX_TYPES: usize = 16;
/// Names of one type on a stream.
pub(crate) const MAX_NAMES: usize = 10_000;
/// Bytes of a name.
pub(crate) const MAX_NAME_LENGTH: usize = 4096;
