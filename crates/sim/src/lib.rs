//! The world of Mainstay in one thread and virtual time.
//!
//! A [`World`] is one channel with everything that decides ([`ChannelCore`](mainstay_lb::ChannelCore), as in
//! production) and everything around it in place of sockets: control planes that speak ADS, the network to them, DNS,
//! backends, RPCs. What happens next is always a choice ([`Choose`](mainstay_xds::Choose)); so a world can be replayed,
//! and all worlds can be visited. After each event an oracle that knows the truth of the world judges what the channel
//! promises: see [`Invariant`].

pub mod authz;
mod choose;
pub mod deps;
pub mod equivalence;
mod explore;
mod fingerprint;
pub mod fuzz;
mod gauntlet;
mod invariant;
mod meddle;
mod named;
mod oracle;
mod plane;
pub mod policies;
mod rehearse;
mod resources;
mod run;
mod scenario;
pub mod servers;
mod shell;
mod shrink;
pub mod small;
mod story;
pub mod swarm;
mod traffic;
mod truth;
mod world;

pub use choose::{Choices, FromBytes, Narrow, Odometer, Recorder, Replayed, Seeded};
pub use explore::{Search, Visited};
pub use gauntlet::{gauntlet, regressions};
pub use invariant::{Invariant, Violation};
pub use meddle::Meddling;
pub use named::{replay_line, scenario};
pub use plane::{DeltaHabits, Habits, Identity, Speech, Versions};
pub use rehearse::{Call, Cost, Fate, Outage, Rehearsal, Remedy, Request, Setup};
pub use resources::{Lb, Policy, PrioritySpec, Spec};
pub use run::{Failure, replay, run};
pub use scenario::{Grain, Kinds, Limits, PlaneSpec, Scenario, ServerHistory};
pub use shrink::shrink;
pub use story::{STORIES, Story};
pub use truth::{Told, Truth};
pub use world::{Event, LinkId, Stats, Who, World};
