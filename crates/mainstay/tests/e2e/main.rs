//! Mainstay end to end: real control planes, real backends, real sockets. One binary, so that it links once.

mod balance;
mod channel;
mod channelz;
mod channelz_v1;
mod common;
mod config;
mod connections;
mod csds;
mod deadlines;
mod delta;
mod fallback;
mod fault_injection;
mod faulty_network;
mod flow_control;
mod globs;
mod last_good;
mod life;
mod load_reports;
mod logical_dns;
mod no_downgrade;
mod outages;
mod outlier_detection;
mod panics;
mod pki;
mod proxy;
mod relay;
mod retry;
mod runtimes;
mod security;
mod server;
mod session_affinity;
#[cfg(feature = "opentelemetry")]
mod telemetry;
mod view;
mod xds_transport;
