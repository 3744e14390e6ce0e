//! Graceful switch: another kind of policy takes over when it has connected, failed or waits for RPCs to connect, or the
//! old one is not ready (L-47); and after a while in any case, as the endpoints of the old one may be gone.

use mainstay_xds::Time;

use super::{Cx, Event, Policy};
use crate::owner::Owner;
use crate::picker::{Parts, Picker};
use crate::pool::Pool;
use crate::subchannel::{State, Subchannel};
use crate::timers::TimerKind;

/// A policy of one of several kinds.
pub(crate) trait Kind: Policy {
    /// Whether `config` is for a policy of this kind.
    fn fits(&self, config: &Self::Config) -> bool;
}

/// A policy, and the one that is to replace it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GracefulSwitch<K> {
    current: K,
    next: Option<K>,
    /// When the next one takes over in any case, and whose timer that is.
    due: Option<(Time, Owner)>,
}

impl<K: Kind> Policy for GracefulSwitch<K> {
    type Config = K::Config;

    fn new(cx: &mut Cx<'_>, config: &K::Config) -> Self {
        Self { current: K::new(cx, config), next: None, due: None }
    }

    fn update(&mut self, cx: &mut Cx<'_>, config: &K::Config) {
        if self.current.fits(config) {
            self.current.update(cx, config);
            self.drop_next(cx);
            self.stop_timer(cx);
        } else if let Some(next) = self.next.as_mut().filter(|next| next.fits(config)) {
            next.update(cx, config);
        } else {
            self.drop_next(cx);
            self.next = Some(K::new(cx, config));
            self.start_timer(cx);
        }
        self.settle(cx);
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        if self.due.is_some_and(|(_, owner)| owner == event.owner) {
            self.take_over(cx);
            return true;
        }
        let handled = self.current.handle(cx, event) || self.next.as_mut().is_some_and(|next| next.handle(cx, event));
        if handled {
            self.settle(cx);
        }
        handled
    }

    fn exit_idle(&mut self, cx: &mut Cx<'_>) {
        self.current.exit_idle(cx);
        self.settle(cx);
    }

    fn serves(&self, owner: Owner) -> bool {
        self.current.serves(owner)
    }

    fn keeps(&self, pool: &Pool, config: &K::Config) -> bool {
        self.current.keeps(pool, config)
    }

    fn shut_down(&mut self, cx: &mut Cx<'_>) {
        self.current.shut_down(cx);
        self.drop_next(cx);
        self.stop_timer(cx);
    }

    fn state(&self) -> State {
        self.current.state()
    }

    fn picker<S: Subchannel>(&self, parts: Parts<'_, S>) -> Picker<S> {
        self.current.picker(parts)
    }
}

impl<K: Kind> GracefulSwitch<K> {
    fn settle(&mut self, cx: &mut Cx<'_>) {
        let old_serves = self.current.state() == State::Ready;
        let connects = self.next.as_ref().is_some_and(|next| next.state() == State::Connecting);
        if !old_serves || !connects {
            self.take_over(cx);
        }
    }

    /// Lets the next one take the place of the current one, if there is a next one.
    fn take_over(&mut self, cx: &mut Cx<'_>) {
        self.stop_timer(cx);
        if let Some(next) = self.next.take() {
            std::mem::replace(&mut self.current, next).shut_down(cx);
        }
    }

    /// Bounds the wait. A third policy that replaces the second does not make it longer.
    fn start_timer(&mut self, cx: &mut Cx<'_>) {
        if let (None, Some(bound)) = (self.due, cx.warm_bound) {
            let (at, owner) = (cx.now + bound, cx.new_owner());
            cx.timers.start(at, owner, TimerKind::Handover);
            self.due = Some((at, owner));
        }
    }

    fn stop_timer(&mut self, cx: &mut Cx<'_>) {
        if let Some((at, owner)) = self.due.take() {
            cx.timers.stop(at, owner, TimerKind::Handover);
        }
    }

    fn drop_next(&mut self, cx: &mut Cx<'_>) {
        if let Some(mut next) = self.next.take() {
            next.shut_down(cx);
        }
    }
}
