//! Handover: what serves goes on serving while what an update put in its place connects.
//!
//! An update may replace every endpoint that RPCs are sent to: other endpoints in the same locality, other localities,
//! another child for a priority, another leaf for an aggregate. All of these are the same here: the child that served
//! was ready, and the child that the update selects connects. So the one before goes on serving, as it was, until the
//! other is ready, all have failed, or the bound is over. It may still be in the list, at another place, or not.
//!
//! Everything below a cluster has a [`Priority`] above it, so no policy has to see to this by itself.

use mainstay_xds::Time;

use super::{Child, Children, Priority};
use crate::policy::{Cx, Event, Policy};
use crate::subchannel::State;
use crate::timers::TimerKind;

/// What goes on serving.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Handover<P: Policy> {
    from: Predecessor<P>,
    /// When it is over in any case. Another update does not make it longer.
    until: Time,
}

/// Who served before the update.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Predecessor<P: Policy> {
    /// A child of the list.
    Listed(u32),
    /// A child that is not in the list any more, or had a configuration of which nothing is left.
    Unlisted(Box<Child<P>>),
}

impl<P: Policy> Handover<P> {
    /// The child that serves.
    pub(super) fn child<'a>(&'a self, children: &'a Children<P>) -> Option<&'a Child<P>> {
        match &self.from {
            Predecessor::Listed(number) => children.get(number).map(|child| &**child),
            Predecessor::Unlisted(child) => Some(child),
        }
    }

    /// Its number, if it is in the list.
    pub(super) fn listed(&self) -> Option<u32> {
        match &self.from {
            Predecessor::Listed(number) => Some(*number),
            Predecessor::Unlisted(_) => None,
        }
    }

    /// The child that is not in the list any more.
    pub(super) fn unlisted(&self) -> Option<&Child<P>> {
        match &self.from {
            Predecessor::Listed(_) => None,
            Predecessor::Unlisted(child) => Some(child),
        }
    }

    /// Takes in an event if it is for the child that is not in the list any more. Whether it was.
    pub(super) fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        match &mut self.from {
            Predecessor::Listed(_) => false,
            Predecessor::Unlisted(child) => child.handle_unlisted(cx, event),
        }
    }
}

impl<P: Policy> Priority<P> {
    /// Has `from`, which served until this update, go on if that is of use.
    pub(super) fn hand_over(&mut self, cx: &mut Cx<'_>, from: Option<Predecessor<P>>) {
        match (from, &mut self.handover, cx.warm_bound) {
            (Some(from), Some(handover), _) => handover.from = from,
            (Some(from), None, Some(bound)) => {
                let until = cx.now + bound;
                cx.timers.start(until, self.owner, TimerKind::Handover);
                self.handover = Some(Handover { from, until });
            }
            (Some(Predecessor::Unlisted(mut child)), None, None) => child.shut_down(cx, self.owner),
            (Some(Predecessor::Listed(_)), None, None) | (None, _, _) => {}
        }
        self.settle(cx);
    }

    /// Finds the child to serve, and ends the handover to it if there is nothing to wait for any more.
    pub(super) fn settle(&mut self, cx: &mut Cx<'_>) {
        self.choose(cx);
        if self.handover.is_none() {
            return;
        }
        if self.selected_state() == Some(State::Idle) {
            self.wake_selected(cx); // RPCs will not: they go elsewhere.
            self.choose(cx);
        }
        let Some(handover) = &self.handover else { return };
        let still_serves = handover.child(&self.children).and_then(Child::state) == Some(State::Ready);
        let is_awaited = self.selected_state() == Some(State::Connecting);
        if !still_serves || !is_awaited {
            self.end_handover(cx);
        }
    }

    /// Lets go of the child that served.
    pub(super) fn end_handover(&mut self, cx: &mut Cx<'_>) {
        if let Some(Handover { from, until }) = self.handover.take() {
            cx.timers.stop(until, self.owner, TimerKind::Handover);
            if let Predecessor::Unlisted(mut child) = from {
                child.shut_down(cx, self.owner);
            }
        }
    }
}
