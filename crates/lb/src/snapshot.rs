//! What an RPC sees: routes and pickers as one immutable value.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use mainstay_xds::resource::route::{ForwardAction, RetryPolicy, RouteAction};
use mainstay_xds::shared::{SharedList, SharedMap};
use mainstay_xds::{Choose, Code};

use crate::call_tracker::CallTracker;
use crate::draws::Draws;
use crate::filters::Injected;
use crate::owner::Wake;
use crate::picker::{ClusterPicker, Outlook, Pick, PickArgs, PickDraws, Picker, Reason};
use crate::routing::{Found, RouteTable};
use crate::rpc::Rpc;
use crate::session::{Session, SessionPick};
use crate::subchannel::{Origin, Subchannel};
use crate::trace::{Recorder, Step};

/// Routes and pickers of one configuration, published together. An RPC loads it once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot<S: Subchannel> {
    pub(crate) content: Content<S>,
}

/// What a snapshot holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Content<S> {
    /// No configuration yet (L-30).
    Nothing,
    /// No configuration to be had (L-29).
    Broken(Failure),
    /// A configuration.
    Works(Works<S>),
}

/// A configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Works<S> {
    pub(crate) routes: Arc<RouteTable>,
    /// Time limit of routes without one.
    pub(crate) default_limit: Option<Duration>,
    /// The number that stands for this channel in request hashes (L-42).
    pub(crate) channel_id: u64,
    /// One per cluster of the routes, in the same order.
    pub(crate) pickers: SharedList<Arc<Picker<S>>>,
    /// Clusters that no route names.
    pub(crate) others: SharedMap<Arc<str>, Arc<Picker<S>>>,
}

/// What an RPC that was not sent, or may be sent again, keeps for the next snapshot: the choice of the cluster stands,
/// so that waiting does not move RPCs from a cluster that connects to one that is ready (L-38).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    route: Option<Arc<ChosenRoute>>,
    /// Whether the filters of the route have had their turn: they have only one, whatever becomes of the RPC.
    filtered: bool,
    /// Once made, it stays: a random one must lead to the same endpoint again.
    hash: Option<u64>,
    /// By which the route and its cluster were chosen.
    of_route: Draws,
    of_pick: PickDraws,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ChosenRoute {
    cluster: Arc<str>,
    limit: Option<Duration>,
    auto_host_rewrite: bool,
    retry: Option<Arc<RetryPolicy>>,
    session: Option<Session>,
}

/// What becomes of an RPC.
#[derive(Debug)]
pub enum Decision<'a, S: Subchannel> {
    /// Send it.
    Send(SendTo<'a, S>),
    /// Wait for the next snapshot; the text says for what, for the error of a deadline that passes meanwhile.
    /// If there is something to wake, hand it to the core: nothing happens before.
    Wait(Failure, Option<Wake>),
    /// Fail it, unless it waits for ready.
    Fail(Failure),
    /// Fail it in any case; never try it again (L-50).
    Drop(Failure),
    /// Do this to it first, in order, then decide again.
    Inject(Vec<Injected>),
}

/// Where an RPC goes.
#[derive(Debug)]
pub struct SendTo<'a, S: Subchannel> {
    /// The connection.
    pub subchannel: &'a S,
    /// Where the endpoint belongs.
    pub origin: &'a Arc<Origin>,
    /// The cluster that was chosen.
    pub cluster: &'a Arc<str>,
    /// Time limit of the route; none if absent (L-40).
    pub limit: Option<Duration>,
    /// `:authority` to use instead of the channel's (L-89).
    pub authority: Option<&'a str>,
    /// Who wants to hear how the RPC ends.
    pub tracker: CallTracker,
    /// Something to hand to the core although the RPC need not wait for it.
    pub wake: Option<Wake>,
    /// `set-cookie` to add to the headers of the response, for the session of the RPC (L-94).
    pub set_cookie: Option<HeaderValue>,
    /// Hand it to the core: the session begins to use a connection that must be kept for it.
    pub keep: Option<Wake>,
}

/// Why an RPC cannot be sent. Codes: see L-200.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    /// The gRPC status code: UNAVAILABLE or INTERNAL.
    pub code: Code,
    /// Whether no RPC of the channel can be sent, because there is no usable configuration.
    pub no_config: bool,
    /// The leaf cluster that was to pick an endpoint, if it came to that (S-64).
    pub cluster: Option<Arc<str>>,
    /// Which resource or which cluster, which priority, and why.
    pub message: String,
}

impl Chosen {
    /// The cluster that was chosen, if the RPC waits for it. Whoever waits must keep it in the configuration (L-27).
    pub fn cluster(&self) -> Option<&Arc<str>> {
        self.route.as_deref().map(|route| &route.cluster)
    }

    /// Time limit of the route that was chosen (L-40).
    pub fn limit(&self) -> Option<Duration> {
        self.route.as_deref()?.limit
    }

    /// Retry policy of the route that was chosen (L-41).
    pub fn retry_policy(&self) -> Option<&Arc<RetryPolicy>> {
        self.route.as_deref()?.retry.as_ref()
    }
}

impl ChosenRoute {
    fn new(
        cluster: &Arc<str>,
        limit: Option<Duration>,
        forward: &ForwardAction,
        session: Option<Session>,
    ) -> Arc<Self> {
        Arc::new(Self {
            cluster: Arc::clone(cluster),
            limit,
            auto_host_rewrite: forward.auto_host_rewrite,
            retry: forward.retry.clone(),
            session,
        })
    }
}

impl<S: Subchannel> Snapshot<S> {
    /// A snapshot without configuration: RPCs wait.
    pub fn empty() -> Self {
        Self { content: Content::Nothing }
    }

    /// What RPCs can expect: the best of what the clusters offer, as gRPC shows the state of a channel.
    pub fn outlook(&self) -> Outlook {
        match &self.content {
            Content::Nothing => Outlook::Wait,
            Content::Broken(_) => Outlook::Fail,
            Content::Works(works) => works
                .pickers
                .iter()
                .chain(works.others.values())
                .map(|picker| picker.outlook())
                .max()
                .unwrap_or(Outlook::Fail),
        }
    }

    /// Matches the route and picks.
    pub fn decide<'a>(&'a self, rpc: Rpc<'_>, choose: &mut dyn Choose) -> Decision<'a, S> {
        self.decide_again(rpc, &mut Chosen::default(), choose)
    }

    /// Decides about an RPC that may have waited for this snapshot: what was chosen before stands if the cluster is still
    /// there, and what is chosen now is kept in `chosen` unless the RPC is sent for good. A cluster that fails, and that
    /// the routes have given up, does not stand: nothing was sent, and the routes know of another one (D-37).
    pub fn decide_again<'a>(&'a self, rpc: Rpc<'_>, chosen: &mut Chosen, choose: &mut dyn Choose) -> Decision<'a, S> {
        self.decide_traced(rpc, chosen, choose, ())
    }

    /// The same, and `recorder` hears how the decision comes about (OP-3).
    pub fn decide_traced<'a, R: Recorder>(
        &'a self,
        rpc: Rpc<'_>,
        chosen: &mut Chosen,
        choose: &mut dyn Choose,
        recorder: R,
    ) -> Decision<'a, S> {
        let works = match &self.content {
            Content::Works(works) => works,
            Content::Nothing => {
                return Decision::Wait(Failure::no_config("waiting for the configuration".into()), None);
            }
            Content::Broken(failure) => return Decision::Fail(failure.clone()),
        };
        let mut session_pick = SessionPick::default();
        if let Some(route) = chosen.route.as_deref()
            && let Some((cluster, picker)) = works.cluster(&route.cluster)
        {
            recorder.record(|| Step::Cluster(Arc::clone(cluster)));
            let args = PickArgs::new(choose, rpc.headers, &mut chosen.hash, &mut chosen.of_pick, recorder);
            let mut args = args.of_session(route.session.as_ref(), &mut session_pick);
            let decision = decide(cluster, picker, route.limit, route.auto_host_rewrite, &mut args);
            let is_given_up = works.routes.index_of(&route.cluster).is_none();
            if !(is_given_up && matches!(decision, Decision::Fail(_))) {
                return decision;
            }
        }
        let (forward, index, found) = match works.route(rpc, &mut chosen.of_route.once(choose), recorder) {
            Ok(found) => found,
            Err(failure) => return Decision::Drop(failure),
        };
        let session = found.filters.and_then(|filters| filters.session(rpc));
        let wanted = session.as_ref().and_then(Session::cluster).filter(|wanted| forward.target.names(wanted));
        let wanted = wanted.and_then(|wanted| works.routes.index_of(wanted)); // A60
        recorder.record_all(|| works.routes.clusters().get(wanted?).cloned().map(Step::SessionCluster));
        let index = wanted.unwrap_or(index);
        let (Some(cluster), Some(picker)) = (works.routes.clusters().get(index), works.pickers.get(index)) else {
            return Decision::Drop(Failure::internal("route without a cluster".into()));
        };
        recorder.record(|| Step::Cluster(Arc::clone(cluster)));
        let limit = limit(forward.max_stream_duration.or(works.default_limit));
        let args = PickArgs::new(choose, rpc.headers, &mut chosen.hash, &mut chosen.of_pick, recorder);
        let mut args = args.hashed_by(found.hash, works.channel_id);
        if let Some(filters) = found.filters.filter(|_| !std::mem::replace(&mut chosen.filtered, true)) {
            let effects = filters.inject(rpc.headers, args.choose);
            if !effects.is_empty() {
                recorder.record(|| Step::Injected(effects.clone()));
                args.keep_hash();
                chosen.route = Some(ChosenRoute::new(cluster, limit, forward, session));
                return Decision::Inject(effects);
            }
        }
        args = args.of_session(session.as_ref(), &mut session_pick);
        let decision = decide(cluster, picker, limit, forward.auto_host_rewrite, &mut args);
        let is_needed_again = match decision {
            Decision::Wait(..) | Decision::Fail(_) => true,
            Decision::Send(_) => forward.retry.is_some(),
            Decision::Drop(_) | Decision::Inject(_) => false,
        };
        if is_needed_again {
            args.keep_hash();
            chosen.route = Some(ChosenRoute::new(cluster, limit, forward, session));
        }
        decision
    }
}

type Route<'a> = (&'a ForwardAction, usize, Found<'a>);

impl<S: Subchannel> Works<S> {
    /// The route of an RPC, the index of its cluster, and what else there is about it.
    fn route<R: Recorder>(&self, rpc: Rpc<'_>, choose: &mut dyn Choose, recorder: R) -> Result<Route<'_>, Failure> {
        let host = &self.routes.virtual_host().name;
        let Some(found) = self.routes.find(rpc, choose, recorder) else {
            let text = format!("no matching route: no route of virtual host {host:?} matches path {:?}", rpc.path);
            return Err(Failure::unavailable(text));
        };
        match (&found.route.action, found.cluster) {
            (RouteAction::Forward(forward), Some(index)) => Ok((forward, index, found)),
            (RouteAction::Forward(_), None) => {
                Err(Failure::internal(format!("the route of virtual host {host:?} names no cluster")))
            }
            (RouteAction::NonForwarding, _) => Err(inappropriate(host, rpc.path, "non_forwarding_action")),
            (RouteAction::Unsupported(action), _) => Err(inappropriate(host, rpc.path, action)),
        }
    }

    fn cluster(&self, name: &str) -> Option<(&Arc<str>, &Picker<S>)> {
        if let Some(index) = self.routes.index_of(name) {
            return Some((self.routes.clusters().get(index)?, self.pickers.get(index)?));
        }
        self.others.get_key_value(name).map(|(cluster, picker)| (cluster, &**picker))
    }

    /// Puts another picker in place of the one that a cluster has.
    pub(crate) fn replace(&mut self, name: &Arc<str>, picker: Arc<Picker<S>>) {
        match self.routes.index_of(name).and_then(|index| self.pickers.get_mut(index)) {
            Some(before) => *before = picker,
            None => drop(self.others.insert(Arc::clone(name), picker)),
        }
    }
}

impl Failure {
    /// With code UNAVAILABLE.
    pub fn unavailable(message: String) -> Self {
        Self { code: Code::Unavailable, no_config: false, cluster: None, message }
    }

    /// With code UNAVAILABLE, for want of a usable configuration (L-29).
    pub(crate) fn no_config(message: String) -> Self {
        Self { code: Code::Unavailable, no_config: true, cluster: None, message }
    }

    fn internal(message: String) -> Self {
        Self { code: Code::Internal, no_config: false, cluster: None, message }
    }

    /// In this leaf cluster.
    fn of<S>(self, leaf: Option<&ClusterPicker<S>>) -> Self {
        Self { cluster: leaf.map(|leaf| Arc::clone(&leaf.name)), ..self }
    }
}

fn decide<'a, S: Subchannel, R: Recorder>(
    cluster: &'a Arc<str>,
    picker: &'a Picker<S>,
    limit: Option<Duration>,
    auto_host_rewrite: bool,
    args: &mut PickArgs<'_, R>,
) -> Decision<'a, S> {
    let pick = picker.pick(args);
    if let Pick::Send(..) = pick {
        args.draws.locality.clear();
    }
    match pick {
        Pick::Send(ready, tracker) => Decision::Send(SendTo {
            subchannel: &ready.subchannel,
            origin: ready.address.origin(),
            cluster,
            limit,
            authority: ready.address.hostname().map(|name| &**name).filter(|_| auto_host_rewrite),
            tracker,
            wake: args.wake,
            set_cookie: args.session.as_ref().and_then(|(session, pick)| {
                let address = ready.address.socket();
                session.set_cookie(address, pick.endpoint.as_deref().unwrap_or(&[address]), cluster)
            }),
            keep: args.session.as_ref().and_then(|(_, pick)| pick.keep),
        }),
        Pick::Wait(reason) => {
            Decision::Wait(Failure::unavailable(reason.explain(cluster)).of(reason.cluster), reason.wake)
        }
        Pick::Fail(reason) => Decision::Fail(Failure::unavailable(reason.explain(cluster)).of(reason.cluster)),
        Pick::Drop(leaf, text) => Decision::Drop(Failure::unavailable(text).of(Some(leaf))),
    }
}

impl<S> Reason<'_, S> {
    /// The whole sentence: which cluster, which leaf of it, why, and what the control plane said.
    fn explain(&self, cluster: &str) -> String {
        match self.cluster {
            None => format!("cluster {cluster:?}: {}", self.text),
            Some(leaf) if *leaf.name == *cluster => format!("cluster {cluster:?}: {} ({})", self.text, leaf.note),
            Some(leaf) => format!("cluster {cluster:?}: leaf {:?}: {} ({})", leaf.name, self.text, leaf.note),
        }
    }
}

/// Zero stands for no limit (L-40).
fn limit(limit: Option<Duration>) -> Option<Duration> {
    limit.filter(|limit| !limit.is_zero())
}

fn inappropriate(host: &str, path: &str, action: &str) -> Failure {
    Failure::unavailable(format!(
        "matching route has inappropriate action: the route of virtual host {host:?} for path {path:?} has {action}, \
         expected route"
    ))
}
