//! Everything that decides how a server behaves.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use mainstay_xds::bootstrap::Bootstrap;
use mainstay_xds::client::ClientSettings;
use mainstay_xds::serve::ServeSettings;

use super::limits::Limits;
use super::security::ServerSecurity;
use crate::ads::AdsLimits;
use crate::audit::Auditor;
use crate::dns::ResolveHost;
use crate::serving_state::ServingState;
use crate::telemetry::Telemetry;

/// Everything that decides how a server behaves, but its addresses and handlers.
pub(super) struct Plan {
    pub(super) client: Arc<ClientPlan>,
    pub(super) security: ServerSecurity,
    pub(super) auditor: Arc<Auditor>,
    /// The names of the services that it has.
    pub(super) services: BTreeSet<&'static str>,
    pub(super) limits: Limits,
    pub(super) serve: ServeSettings,
    /// Whether there are ports; without, the server is only looked at.
    pub(super) bind: bool,
    pub(super) on_state: Option<OnState>,
}

/// Everything that decides how the client of servers behaves. Those with equal ones share it.
pub(super) struct ClientPlan {
    pub(super) bootstrap: Arc<Bootstrap>,
    pub(super) dns: Arc<dyn ResolveHost>,
    pub(super) client: ClientSettings,
    pub(super) ads: AdsLimits,
    pub(super) telemetry: Option<Telemetry>,
}

impl PartialEq for ClientPlan {
    fn eq(&self, other: &Self) -> bool {
        self.bootstrap == other.bootstrap
            && Arc::ptr_eq(&self.dns, &other.dns)
            && self.client == other.client
            && self.ads == other.ads
            && self.telemetry == other.telemetry
    }
}

/// What the application wants to hear of states.
pub(super) type OnState = Arc<dyn Fn(SocketAddr, &ServingState) + Send + Sync>;
