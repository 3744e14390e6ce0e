//! From the name of a target to something that can be called.

use std::{fmt, path::PathBuf, str::FromStr};

use mainstay::{BuildError, Channel, ChannelBuilder, Credentials, bootstrap::Bootstrap};
use mainstay_testservice::proto::test_service_client::TestServiceClient;
use tonic::transport::Endpoint;

use crate::{call::Caller, failure::Failure};

/// What to call.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// An xDS name, resolved through the control plane of the bootstrap.
    Xds(String),
    /// One server, called through tonic's own channel: the thing to compare with.
    Plain(Box<Endpoint>, String),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(name) = text.strip_prefix("xds:") {
            let empty = name.trim_start_matches('/').is_empty();
            return if empty { Err(EXPECTED.to_owned()) } else { Ok(Self::Xds(text.to_owned())) };
        }
        match text.strip_prefix("http://").map(|_| Endpoint::from_shared(text.to_owned())) {
            Some(Ok(endpoint)) if endpoint.uri().host().is_some_and(|host| !host.is_empty()) => {
                Ok(Self::Plain(Box::new(endpoint), text.to_owned()))
            }
            _ => Err(EXPECTED.to_owned()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xds(text) | Self::Plain(_, text) => f.write_str(text),
        }
    }
}

/// How to call it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// Let calls wait for a connection instead of failing while there is none.
    pub(crate) wait_for_ready: bool,
    /// How connections to endpoints are secured.
    pub(crate) credentials: Credentials,
    /// The bootstrap to use in place of the one that the environment names.
    pub(crate) bootstrap: Option<Bootstrap>,
    /// Where last-good files are kept, in place of what the bootstrap says.
    pub(crate) last_good: Option<PathBuf>,
}

/// A channel to `target`. Nothing is sent before the first call.
pub(crate) fn connect(target: &Target, options: &Options) -> Result<Box<dyn Caller>, Failure> {
    match target {
        Target::Plain(..) => Ok(Box::new(TestServiceClient::new(endpoint_of(target, options)?.connect_lazy()))),
        Target::Xds(text) => Ok(Box::new(TestServiceClient::new(xds_channel(text, options)?))),
    }
}

/// Where tonic's own channel leads, if it has what is asked of it.
pub(crate) fn endpoint_of(target: &Target, options: &Options) -> Result<Endpoint, Failure> {
    match target {
        Target::Plain(_, text) if options.wait_for_ready => Err(Failure::usage(format!(
            "--wait-for-ready cannot be had for {text}: tonic's own channel has no such mode"
        ))
        .tip("drop the flag, or call an xds: target")),
        Target::Plain(_, text) if options.credentials != Credentials::insecure() => Err(Failure::usage(format!(
            "--credentials cannot be had for {text}: tonic's own channel is in plaintext here"
        ))
        .tip("drop the flag, or call an xds: target")),
        Target::Plain(_, text) if options.last_good.is_some() => Err(Failure::usage(format!(
            "--last-good cannot be had for {text}: tonic's own channel has no control plane"
        ))
        .tip("drop the flag, or call an xds: target")),
        Target::Plain(endpoint, _) => Ok((**endpoint).clone()),
        Target::Xds(text) => Err(Failure::usage(format!("{text} is not one server"))),
    }
}

/// A channel of ours.
pub(crate) fn xds_channel(target: &str, options: &Options) -> Result<Channel, Failure> {
    let mut builder =
        Channel::builder(target).wait_for_ready(options.wait_for_ready).credentials(options.credentials.clone());
    if let Some(bootstrap) = &options.bootstrap {
        builder = builder.bootstrap(bootstrap.clone());
    }
    if let Some(directory) = &options.last_good {
        builder = builder.last_good(&**directory);
    }
    build(builder)
}

/// Makes a channel of ours, or says why it cannot be made.
pub(crate) fn build(builder: ChannelBuilder) -> Result<Channel, Failure> {
    builder.build().map_err(|error| match error {
        BuildError::Target(_) => Failure::usage(error.to_string()),
        _ => Failure::failed(error.to_string()),
    })
}

const EXPECTED: &str = "expected an xDS name such as xds:///greeter, or one server such as http://127.0.0.1:50051";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_xds_names_or_plain_servers() {
        assert!(matches!("xds:///greeter".parse(), Ok(Target::Xds(_))));
        assert!(matches!("xds://authority/greeter".parse(), Ok(Target::Xds(_))));
        assert!(matches!("http://127.0.0.1:1".parse(), Ok(Target::Plain(..))));
        for text in ["", "xds:", "xds:///", "127.0.0.1:1", "https://a:1", "http://", "http://a b", "dns:///a:1"] {
            assert_eq!(text.parse::<Target>().unwrap_err(), EXPECTED, "{text}");
        }
    }

    #[test]
    fn a_target_is_shown_as_it_was_written() {
        for text in ["xds:///greeter", "http://localhost:50051"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_plain_target_cannot_wait_for_ready() {
        let target = "http://127.0.0.1:1".parse().unwrap();
        let options = Options { wait_for_ready: true, ..Options::default() };
        assert!(connect(&target, &options).is_err());
    }
}
