//! Graceful switch: another kind of policy takes over when it is ready, or waits for RPCs to connect, or the old one is
//! not ready (L-47).

use super::{Cx, Event, Policy, State};
use crate::picker::Picker;
use crate::pool::{Handles, Pool};
use crate::tree::Subchannel;

/// A policy of one of several kinds.
pub(crate) trait Kind: Policy {
    /// Whether `config` is for a policy of this kind.
    fn fits(&self, config: &Self::Config) -> bool;
}

/// A policy, and the one that is to replace it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Switch<K> {
    current: K,
    next: Option<K>,
}

impl<K: Kind> Policy for Switch<K> {
    type Config = K::Config;

    fn new(cx: &mut Cx<'_>, config: &K::Config) -> Self {
        Self { current: K::new(cx, config), next: None }
    }

    fn update(&mut self, cx: &mut Cx<'_>, config: &K::Config) {
        if self.current.fits(config) {
            self.current.update(cx, config);
            self.drop_next(cx);
        } else if let Some(next) = self.next.as_mut().filter(|next| next.fits(config)) {
            next.update(cx, config);
        } else {
            self.drop_next(cx);
            self.next = Some(K::new(cx, config));
        }
        self.settle(cx);
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
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

    fn shut_down(&mut self, cx: &mut Cx<'_>) {
        self.current.shut_down(cx);
        self.drop_next(cx);
    }

    fn state(&self) -> State {
        self.current.state()
    }

    fn picker<S: Subchannel>(&self, pool: &Pool, handles: &Handles<S>) -> Picker<S> {
        self.current.picker(pool, handles)
    }
}

impl<K: Kind> Switch<K> {
    fn settle(&mut self, cx: &mut Cx<'_>) {
        let old_serves = self.current.state() == State::Ready;
        let can_serve = |next: &mut K| matches!(next.state(), State::Ready | State::Idle);
        if let Some(next) = self.next.take_if(|next| can_serve(next) || !old_serves) {
            std::mem::replace(&mut self.current, next).shut_down(cx);
        }
    }

    fn drop_next(&mut self, cx: &mut Cx<'_>) {
        if let Some(mut next) = self.next.take() {
            next.shut_down(cx);
        }
    }
}
