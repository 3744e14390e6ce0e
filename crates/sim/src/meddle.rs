//! Planted faults: a client that breaks one rule of the incremental variant, made of one that does not by changing what
//! it says and hears. Each must be noticed.

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use envoy_types::pb::google::rpc::Status;
use mainstay_xds::client::Protocol;

use crate::plane::{Delta, Response};

/// The rule that a client breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Meddling {
    /// DX-1 to DX-3: it speaks the other variant.
    OtherVariant,
    /// DX-6: a change comes with an answer.
    ChangeInAnswer,
    /// DX-6: a change comes with none and an answer is a change.
    Nothing,
    /// DX-7: a name is in both lists.
    BothLists,
    /// DX-8: what must be sent again is subscribed without having been unsubscribed.
    RepeatedSubscription,
    /// DX-10: the node is in every request.
    NodeTwice,
    /// DX-10: what it has is told in a later request.
    LateClaims,
    /// DX-11: the nonce is another one.
    OtherNonce,
    /// DX-11: what is bad is accepted.
    AckOfBad,
    /// DX-11: what is good is rejected.
    NackOfGood,
    /// DX-13: what is removed is not heard.
    DeafToRemovals,
    /// DX-14: nothing is ever held to be absent.
    NoTimer,
    /// DX-16: who the server is does not matter.
    DeafToIdentity,
    /// DX-16, DX-20: it claims what it does not have.
    FalseClaim,
    /// DX-16: it claims all that it has, whatever its version is.
    EveryClaim,
    /// DX-21: it claims nothing.
    NoClaims,
    /// DX-19: errors are not heard.
    DeafToErrors,
    /// P-76: it asks for everything.
    Wildcard,
}

impl Meddling {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::OtherVariant,
        Self::ChangeInAnswer,
        Self::Nothing,
        Self::BothLists,
        Self::RepeatedSubscription,
        Self::NodeTwice,
        Self::LateClaims,
        Self::OtherNonce,
        Self::AckOfBad,
        Self::NackOfGood,
        Self::DeafToRemovals,
        Self::NoTimer,
        Self::DeafToIdentity,
        Self::FalseClaim,
        Self::EveryClaim,
        Self::NoClaims,
        Self::DeafToErrors,
        Self::Wildcard,
    ];

    /// The variant that a stream is said to be of.
    pub(crate) fn open(self, protocol: Protocol) -> Protocol {
        match (self, protocol) {
            (Self::OtherVariant, Protocol::Sotw) => Protocol::Delta,
            (Self::OtherVariant, Protocol::Delta) => Protocol::Sotw,
            (_, protocol) => protocol,
        }
    }

    /// What the client hears.
    pub(crate) fn hear(self, response: &Response) -> Response {
        let mut heard = response.clone();
        if let Some(Delta { removed, identifier }) = &mut heard.delta {
            if self == Self::DeafToRemovals {
                removed.clear();
            }
            if self == Self::DeafToIdentity {
                *identifier = "always the same".into();
            }
            if self == Self::DeafToErrors {
                heard.errors.clear();
            }
        }
        heard
    }

    /// What the client says over delta.
    pub(crate) fn say(
        self,
        mut request: DeltaDiscoveryRequest,
        held: impl Fn(&str) -> Option<String>,
    ) -> DeltaDiscoveryRequest {
        let is_change = request.response_nonce.is_empty();
        let is_first = request.node.is_some();
        match self {
            Self::ChangeInAnswer if is_change && !is_first => "1".clone_into(&mut request.response_nonce),
            Self::Nothing if is_change && !is_first => {
                request.resource_names_subscribe.clear();
                request.resource_names_unsubscribe.clear();
            }
            Self::BothLists => {
                request.resource_names_unsubscribe.extend(request.resource_names_subscribe.first().cloned())
            }
            Self::RepeatedSubscription => {
                request.resource_names_subscribe.append(&mut request.resource_names_unsubscribe);
            }
            Self::NodeTwice => request.node = Some(Node { id: "sim".to_owned(), ..Node::default() }),
            Self::LateClaims if !is_change || !request.resource_names_unsubscribe.is_empty() => {
                request.initial_resource_versions.insert("c0".to_owned(), LONG.to_owned());
            }
            Self::OtherNonce if !is_change => request.response_nonce.push('x'),
            Self::AckOfBad => request.error_detail = None,
            Self::NackOfGood if !is_change => {
                request.error_detail = Some(Status { code: 3, message: "no".to_owned(), ..Status::default() });
            }
            Self::FalseClaim => {
                let names = request.resource_names_subscribe.iter().filter(|_| is_first);
                request.initial_resource_versions.extend(names.map(|name| (name.clone(), LONG.to_owned())));
            }
            Self::EveryClaim => {
                let names = request.resource_names_subscribe.iter();
                request.initial_resource_versions.extend(names.filter_map(|name| Some((name.clone(), held(name)?))));
            }
            Self::NoClaims => request.initial_resource_versions.clear(),
            Self::Wildcard if is_first => request.resource_names_subscribe.clear(),
            _ => {}
        }
        request
    }
}

/// A version that could be a hash.
const LONG: &str = "0123456789abcdef";
