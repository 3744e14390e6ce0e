//! The LB policies that are compared, and the targets that are balanced by them.

use std::net::SocketAddr;

use clap::ValueEnum;
use envoy_types::pb::envoy::config::cluster::v3::cluster::LbPolicy;
use envoy_types::pb::envoy::config::cluster::v3::load_balancing_policy::Policy as PolicyEntry;
use envoy_types::pb::envoy::config::cluster::v3::{Cluster, LoadBalancingPolicy, OutlierDetection};
use envoy_types::pb::envoy::config::core::v3::TypedExtensionConfig;
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::HashPolicy;
use envoy_types::pb::envoy::config::route::v3::route_action::hash_policy::{Header, PolicySpecifier};
use envoy_types::pb::envoy::extensions::filters::http::stateful_session::v3::StatefulSession;
use envoy_types::pb::envoy::extensions::http::stateful_session::cookie::v3::CookieBasedSessionState;
use envoy_types::pb::envoy::extensions::load_balancing_policies::client_side_weighted_round_robin::v3::ClientSideWeightedRoundRobin;
use envoy_types::pb::envoy::extensions::load_balancing_policies::least_request::v3::LeastRequest;
use envoy_types::pb::envoy::extensions::load_balancing_policies::pick_first::v3::PickFirst;
use envoy_types::pb::envoy::extensions::load_balancing_policies::random_subsetting::v3::RandomSubsetting;
use envoy_types::pb::envoy::extensions::load_balancing_policies::round_robin::v3::RoundRobin;
use envoy_types::pb::envoy::r#type::http::v3::Cookie;
use envoy_types::pb::google::protobuf::{Duration as PbDuration, UInt32Value};
use envoy_types::util::pack_any;
use mainstay_control_plane::{SnapshotBuilder, resources};
use prost::{Message, Name};

/// How the RPCs of a target are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Policy {
    RoundRobin,
    PickFirst,
    /// By the hash of a header.
    RingHash,
    LeastRequest,
    /// By the reports that come with answers.
    WeightedRoundRobin,
    /// Three of the endpoints, in turn.
    RandomSubsetting,
    /// Over round_robin, counting successes and failures.
    OutlierDetection,
    /// Session affinity by cookie, over round_robin.
    OverrideHost,
}

impl Policy {
    /// The one that the others are measured against comes first.
    pub(crate) const ALL: [Self; 8] = [
        Self::RoundRobin,
        Self::PickFirst,
        Self::RingHash,
        Self::LeastRequest,
        Self::WeightedRoundRobin,
        Self::RandomSubsetting,
        Self::OutlierDetection,
        Self::OverrideHost,
    ];

    /// In flags and in JSON; also of its target, its cluster and its endpoints.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::PickFirst => "pick_first",
            Self::RingHash => "ring_hash",
            Self::LeastRequest => "least_request",
            Self::WeightedRoundRobin => "weighted_round_robin",
            Self::RandomSubsetting => "random_subsetting",
            Self::OutlierDetection => "outlier_detection",
            Self::OverrideHost => "override_host",
        }
    }

    /// Puts the target that is balanced this way into a snapshot.
    pub(crate) fn add_to(self, snapshot: SnapshotBuilder, backends: &[SocketAddr]) -> SnapshotBuilder {
        snapshot
            .listener(self.listener())
            .cluster(self.cluster())
            .endpoints(resources::endpoints(self.name(), backends))
    }

    fn listener(self) -> Listener {
        self.listener_of(self.name())
    }

    /// The Listener of a target with another name.
    pub(crate) fn listener_of(self, target: &str) -> Listener {
        let mut routes = resources::route(self.name(), self.name());
        if let (Self::RingHash, Some(Action::Route(action))) = (self, &mut routes.virtual_hosts[0].routes[0].action) {
            let header = Header { header_name: USER.into(), ..Default::default() };
            let by_header = HashPolicy { policy_specifier: Some(PolicySpecifier::Header(header)), terminal: false };
            action.hash_policy.push(by_header);
        }
        let listener = resources::listener(target, routes);
        match self {
            Self::OverrideHost => resources::with_filter(listener, "session", pack_any(session())),
            _ => listener,
        }
    }

    pub(crate) fn cluster(self) -> Cluster {
        let cluster = resources::eds_cluster(self.name());
        let by = |policy| Cluster { load_balancing_policy: Some(policy), ..cluster.clone() };
        match self {
            Self::RoundRobin | Self::OverrideHost => cluster,
            Self::PickFirst => by(policies(PickFirst::default())),
            Self::RingHash => Cluster { lb_policy: LbPolicy::RingHash.into(), ..cluster },
            Self::LeastRequest => by(policies(LeastRequest::default())),
            Self::WeightedRoundRobin => by(policies(ClientSideWeightedRoundRobin {
                blackout_period: Some(PbDuration::default()),
                ..Default::default()
            })),
            Self::RandomSubsetting => by(policies(RandomSubsetting {
                subset_size: Some(UInt32Value { value: 3 }),
                child_policy: Some(policies(RoundRobin::default())),
            })),
            Self::OutlierDetection => Cluster { outlier_detection: Some(OutlierDetection::default()), ..cluster },
        }
    }
}

fn session() -> StatefulSession {
    let cookie = Cookie { name: "session".to_owned(), ..Cookie::default() };
    let state = CookieBasedSessionState { cookie: Some(cookie) };
    let session_state = TypedExtensionConfig { name: "cookie".to_owned(), typed_config: Some(pack_any(state)) };
    StatefulSession { session_state: Some(session_state), ..StatefulSession::default() }
}

fn policies<M: Message + Name>(config: M) -> LoadBalancingPolicy {
    let config = TypedExtensionConfig { name: M::NAME.to_owned(), typed_config: Some(pack_any(config)) };
    LoadBalancingPolicy { policies: vec![PolicyEntry { typed_extension_config: Some(config) }] }
}

/// The header that ring_hash goes by.
pub(crate) const USER: &str = "user";
