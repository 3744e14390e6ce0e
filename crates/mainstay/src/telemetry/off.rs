//! Observers that observe nothing, in a build without OpenTelemetry.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use mainstay_lb::{Connectivity, Failure, Observation, Origin};
use mainstay_xds::client::{Report, XdsClient};
use tonic::Code;
use tonic::body::Body;

use crate::disconnect::Cause;
use crate::tls::Handshake;

/// Nobody can have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Telemetry {}

/// What stands in for the observer of the same name, as do the following.
#[derive(Debug)]
pub(crate) struct XdsObserver;

#[derive(Debug)]
pub(crate) struct SubchannelObserver;

#[derive(Debug)]
pub(crate) struct LbObserver;

#[derive(Debug)]
pub(crate) struct ChannelObserver;

#[derive(Debug, Default)]
pub(crate) struct CallObserver;

#[derive(Debug, Default)]
pub(crate) struct SentObserver;

#[derive(Debug)]
pub(crate) struct ServerObserver;

#[derive(Debug)]
pub(crate) struct ServerCallObserver;

#[derive(Clone, Debug)]
pub(crate) struct ReceivedObserver;

impl SubchannelObserver {
    pub(crate) fn note(&mut self, _: &Connectivity, _: Cause) {}
}

impl XdsObserver {
    pub(crate) fn new(_: Option<&Telemetry>, _: &Arc<str>) -> Self {
        Self
    }

    pub(crate) fn note(&mut self, _: &Report) {}

    pub(crate) fn look_at(&mut self, _: &XdsClient) {}

    pub(crate) fn show_last_good(&mut self, _: Option<Duration>) {}
}

impl LbObserver {
    pub(crate) fn new(_: Option<&Telemetry>, _: &Arc<str>) -> Self {
        Self
    }

    pub(crate) fn subchannel(&self, _: &Origin, _secure: bool) -> SubchannelObserver {
        SubchannelObserver
    }

    pub(crate) fn note(&self, _: &Observation) {}
}

impl ChannelObserver {
    pub(crate) fn new(_: Option<&Telemetry>, _: &Arc<str>) -> Self {
        Self
    }

    pub(crate) fn begin(&self, _: &http::Request<Body>) -> CallObserver {
        CallObserver
    }
}

impl CallObserver {
    pub(crate) fn wait(&mut self, _: &Failure) {}

    pub(crate) fn give_up(&mut self, _: &Failure) {}

    pub(crate) fn pick(&mut self, _: &Arc<Origin>) {}

    pub(crate) fn send(&mut self, _: &mut HeaderMap) -> SentObserver {
        SentObserver
    }

    pub(crate) fn receive(&mut self, _: &[u8]) {}

    pub(crate) fn end_attempt(&mut self, _: Code, _message: &str, _transparent: bool) {}

    pub(crate) fn end(&mut self, _: Code, _message: &str) {}

    pub(crate) fn end_with(&mut self, _: Code, _: Option<&HeaderMap>) {}
}

impl SentObserver {
    pub(crate) fn send(&self, _: &[u8]) {}
}

impl ServerObserver {
    pub(crate) fn new(_: Option<&Telemetry>) -> Self {
        Self
    }

    pub(crate) fn handshake(&self, _: Handshake) {}

    pub(crate) fn begin(&self, _path: &str, _known: bool, _: &HeaderMap) -> ServerCallObserver {
        ServerCallObserver
    }
}

impl ServerCallObserver {
    pub(crate) fn received(&self) -> Option<ReceivedObserver> {
        None
    }

    pub(crate) fn send(&mut self, _: &[u8]) {}

    pub(crate) fn end(&mut self, _: Code, _: Option<&HeaderMap>) {}
}

impl ReceivedObserver {
    pub(crate) fn receive(&self, _: &[u8]) {}
}
