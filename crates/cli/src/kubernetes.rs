//! Flags about a Kubernetes cluster.

use std::path::PathBuf;

use clap::Args;
use mainstay_sources::{
    freshness::Limits,
    kubernetes::{Judge as Asked, Settings},
};

use crate::judge::Judge;

/// Which cluster, and what in it.
#[derive(Args, Debug)]
pub(crate) struct KubernetesFlags {
    /// Serve the Services of a Kubernetes cluster: that of this pod, or of the kubeconfig
    #[arg(long)]
    kubernetes: bool,

    /// Only this namespace; may be given more than once [default: all of them]
    #[arg(long = "namespace", value_name = "NS", value_parser = namespace, requires = "kubernetes")]
    namespaces: Vec<String>,

    /// How to reach the API server [default: $KUBECONFIG, ~/.kube/config, or as a pod does]
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    kubeconfig: Option<PathBuf>,

    /// The DNS domain of the cluster, for the names of listeners
    #[arg(long, value_name = "NAME", default_value = "cluster.local", requires = "kubernetes")]
    cluster_domain: String,

    /// The region of all localities, as Kubernetes tells only zones [default: none]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true, requires = "kubernetes")]
    region: String,
}

impl KubernetesFlags {
    /// What to follow, if anything.
    pub(crate) fn resolve(self, judge: Judge, limits: Limits, file: Option<PathBuf>) -> Option<Settings> {
        let Self { kubernetes, namespaces, kubeconfig, cluster_domain: domain, region } = self;
        let judge = Asked::new(move |sources| judge.parts(sources));
        kubernetes.then_some(Settings { kubeconfig, namespaces, domain, region, judge, limits, file })
    }
}

/// A label of DNS, as Kubernetes demands: it becomes a part of paths.
fn namespace(text: &str) -> Result<String, String> {
    let is_label = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    match text.len() {
        1..=63 if is_label => Ok(text.to_owned()),
        _ => Err("expected lower-case letters, digits and hyphens, 63 at most".to_owned()),
    }
}
