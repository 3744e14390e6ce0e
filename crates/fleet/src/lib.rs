//! A fleet: thousands of clients and their control planes in one thread and virtual time (SC-16).
//!
//! Both sides are what runs in production: each client is a [`ChannelCore`](mainstay_lb::ChannelCore), each control plane the
//! [`sans_io`](mainstay_control_plane::sans_io) part of `mainstay-control-plane`. Between them is a [`Model`] of what is not
//! there: a network with a delay, processors with service times, a link with a bandwidth, a backlog of connections.
//!
//! A [`Scenario`] says what happens to the control planes; [`run`] plays it and answers with a [`Report`]: what each control plane
//! was asked and when, what each client had to do without and for how long, and what did not hold of what must.
//!
//! ```
//! use mainstay_fleet::{Plan, Rules, Scenario, run};
//!
//! let hand_over = Scenario::find("F1").expect("there is one of that name");
//! let ours = run(&Plan { clients: 100, ..Plan::new(hand_over) });
//! assert_eq!(ours.violations, Vec::<String>::new());
//! let theirs = run(&Plan { clients: 100, rules: Rules::Peers, ..Plan::new(hand_over) });
//! assert!(ours.peak_opens(1) < theirs.peak_opens(1));
//! ```

mod client;
mod fleet;
mod model;
mod plane;
mod plot;
mod record;
mod scenario;
mod setup;

pub use fleet::{Plan, run};
pub use model::Model;
pub use plot::svg;
pub use record::{Moments, Percentiles, PlaneReport, Report, Seen, TICK};
pub use scenario::{Rules, SCENARIOS, Scenario};

/// What the front page of the package shows compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
