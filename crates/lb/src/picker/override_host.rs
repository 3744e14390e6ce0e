//! Leads RPCs back to where their session lives (A55).

use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Pick, PickArgs, Picker, Ready, Reason};
use crate::call_tracker::CallTracker;
use crate::owner::{Owner, Wake};
use crate::session::SessionPick;
use crate::subchannel::Subchannel;
use crate::trace::{Recorder, Step};

/// The endpoints of a cluster that has sessions, and what RPCs do that belong nowhere yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OverridePicker<S> {
    /// By address, in order.
    pub(crate) hosts: Box<[SessionHost<S>]>,
    pub(crate) child: Picker<S>,
}

/// One address that a session may want.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionHost<S> {
    pub(crate) address: SocketAddr,
    /// Who keeps it.
    pub(crate) owner: Owner,
    /// All addresses of its endpoint.
    pub(crate) endpoint: Arc<[SocketAddr]>,
    pub(crate) state: HostState<S>,
    pub(crate) used: Arc<Used>,
    /// Whether it is known already that a session uses it.
    pub(crate) kept: bool,
}

/// How an address can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum HostState<S> {
    Ready(Ready<S>),
    Idle,
    Connecting,
    /// Nobody has a subchannel for it.
    Missing,
    /// It fails, or its health forbids it.
    Unusable,
}

/// Whether a session used an address since someone last looked. Two are equal if they are the same one: the answer is no
/// state of a policy, but whom to ask is.
#[derive(Debug, Default)]
pub(crate) struct Used(AtomicBool);

impl<S: Subchannel> OverridePicker<S> {
    /// Where the cookie says, as long as that is or becomes reachable; else as the child says (L-97).
    pub(super) fn pick<R: Recorder>(&self, args: &mut PickArgs<'_, R>) -> Pick<'_, S> {
        let Some((session, result)) = &mut args.session else { return self.child.pick(args) };
        let (mut idle, mut connecting, mut missing) = (None, false, None);
        for host in session.hosts().iter().filter_map(|address| self.host(*address)) {
            match &host.state {
                HostState::Ready(ready) if ready.subchannel.is_ready() => {
                    host.use_for(result);
                    args.recorder.record(|| Step::Session(host.address));
                    return Pick::Send(ready, CallTracker::default());
                }
                HostState::Ready(_) | HostState::Connecting => connecting = true,
                HostState::Idle => idle = idle.or(Some(host)),
                HostState::Missing => missing = missing.or(Some(host)),
                HostState::Unusable => {}
            }
        }
        let asleep = idle.or(missing.filter(|_| !connecting));
        if asleep.is_some() || connecting {
            let wake = asleep.map(|host| Wake(host.owner));
            return Pick::Wait(Reason { wake, ..Reason::new(SESSION) });
        }
        let pick = self.child.pick(args);
        if let (Pick::Send(ready, _), Some((_, result))) = (&pick, &mut args.session)
            && let Some(host) = self.host(ready.address.socket())
        {
            host.use_for(result);
        }
        pick
    }

    fn host(&self, address: SocketAddr) -> Option<&SessionHost<S>> {
        let index = self.hosts.binary_search_by_key(&address, |host| host.address).ok()?;
        self.hosts.get(index)
    }
}

impl<S> SessionHost<S> {
    fn use_for(&self, session: &mut SessionPick) {
        self.used.note();
        session.endpoint = Some(Arc::clone(&self.endpoint));
        session.keep = (!self.kept).then_some(Wake(self.owner));
    }
}

impl Used {
    /// Notes a use. Mostly there is one already, and nothing is written.
    pub(crate) fn note(&self) {
        if !self.0.load(Ordering::Relaxed) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Whether there was a use since the last call.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl PartialEq for Used {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Used {}

impl Hash for Used {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

const SESSION: &str = "connecting to the endpoint of the session";
