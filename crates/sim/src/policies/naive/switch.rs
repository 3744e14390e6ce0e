//! Graceful switch (L-47): another kind of policy takes over when it does not connect any more, when the old one is not
//! ready any more, or when the bound is over, counted from the first switch.

use mainstay_xds::Time;

use super::pick::Picker;
use super::{Connections, Deadline, Env, Kind, Policy, State, What, Who};

/// A policy of one of several kinds.
pub(super) trait OfKind: Policy {
    fn fits(&self, config: &Self::Config) -> bool;
}

#[derive(Clone, Debug)]
pub(super) struct Switch<P> {
    current: P,
    next: Option<P>,
    due: Option<(Time, Who)>,
}

impl<P: OfKind> Switch<P> {
    fn settle(&mut self, env: &mut Env<'_>) {
        let waits = self.next.as_ref().is_some_and(|next| next.state() == State::Connecting);
        if self.current.state() != State::Ready || !waits {
            self.take_over(env);
        }
    }

    fn take_over(&mut self, env: &mut Env<'_>) {
        self.due = None;
        if let Some(next) = self.next.take() {
            self.current.close(env);
            self.current = next;
        }
    }
}

impl<P: OfKind> Policy for Switch<P> {
    type Config = P::Config;

    fn new(env: &mut Env<'_>, config: &P::Config) -> Self {
        Self { current: P::new(env, config), next: None, due: None }
    }

    fn update(&mut self, env: &mut Env<'_>, config: &P::Config) {
        if self.current.fits(config) {
            self.current.update(env, config);
            self.due = None;
            if let Some(mut next) = self.next.take() {
                next.close(env);
            }
        } else if self.next.as_ref().is_some_and(|next| next.fits(config)) {
            self.next.iter_mut().for_each(|next| next.update(env, config));
        } else {
            if let Some(mut next) = self.next.take() {
                next.close(env);
            }
            self.next = Some(P::new(env, config));
            if let (None, Some(bound)) = (self.due, env.bound) {
                self.due = Some((env.now + bound, env.new_who()));
            }
        }
        self.settle(env);
    }

    fn handle(&mut self, env: &mut Env<'_>, who: Who, what: &What) -> bool {
        if self.due.is_some_and(|(_, owner)| owner == who) {
            self.take_over(env);
            return true;
        }
        let handled =
            self.current.handle(env, who, what) || self.next.as_mut().is_some_and(|next| next.handle(env, who, what));
        if handled {
            self.settle(env);
        }
        handled
    }

    fn exit_idle(&mut self, env: &mut Env<'_>) {
        self.current.exit_idle(env);
        self.settle(env);
    }

    fn serves(&self, who: Who) -> bool {
        self.current.serves(who)
    }

    fn keeps(&self, connections: &Connections, config: &P::Config) -> bool {
        self.current.keeps(connections, config)
    }

    fn close(&mut self, env: &mut Env<'_>) {
        self.current.close(env);
        self.next.iter_mut().for_each(|next| next.close(env));
    }

    fn state(&self) -> State {
        self.current.state()
    }

    fn picker(&self, connections: &Connections) -> Picker {
        self.current.picker(connections)
    }

    fn deadlines(&self, into: &mut Vec<Deadline>) {
        self.current.deadlines(into);
        self.next.iter().for_each(|next| next.deadlines(into));
        into.extend(self.due.map(|(at, who)| (at, who, Kind::Handover)));
    }
}
