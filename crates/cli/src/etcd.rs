//! Flags about an etcd cluster, for those that read from it and those that write to it.

use std::path::PathBuf;

use clap::Args;
use mainstay_sources::etcd::{Endpoints, Scope, TlsFiles};

use crate::failure::Failure;

/// Which cluster, and what in it.
#[derive(Args, Debug)]
pub(crate) struct EtcdFlags {
    /// The members of an etcd cluster, such as http://10.0.0.1:2379,http://10.0.0.2:2379
    #[arg(long = "etcd", value_name = "URI", value_delimiter = ',')]
    members: Vec<String>,

    /// The name under which generations are published; several can live in one etcd
    #[arg(long, value_name = "NAME", default_value = "default", requires = "members")]
    scope: Scope,

    /// The authorities of https: members, in PEM; those of the system otherwise
    #[arg(long, value_name = "FILE", requires = "members")]
    etcd_ca: Option<PathBuf>,

    /// Present this certificate to https: members
    #[arg(long, value_name = "FILE", requires_all = ["members", "etcd_key"])]
    etcd_cert: Option<PathBuf>,

    /// The private key of --etcd-cert
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
}

impl EtcdFlags {
    /// The cluster, if one is named.
    pub(crate) fn resolve(self) -> Result<Option<(Endpoints, Scope)>, Failure> {
        if self.members.is_empty() {
            return Ok(None);
        }
        let tls = TlsFiles { ca: self.etcd_ca, identity: self.etcd_cert.zip(self.etcd_key) };
        let endpoints = Endpoints::new(self.members.iter().map(String::as_str), &tls);
        let endpoints = endpoints.map_err(|error| Failure::usage(format!("--etcd: {error}")))?;
        Ok(Some((endpoints, self.scope)))
    }
}
