//! Where the resources of `serve` come from.
//!
//! Another origin is one more variant: its flags in `serve.rs`, which make it, its name, and an arm in [`Origin::follow`] that
//! takes a [`Feed`] from the intake, has a task bring it whole sets of resources, and hands back what keeps that task
//! going. Putting sets into force, laying them over each other, age, readiness, the log and SIGHUP are the intake's.

use std::{fmt, path::PathBuf};

use mainstay_control_plane::{
    ControlPlane, Deletions, DirectoryWatch, Feed, Intake, LoadErrors, Reload, follow_directory,
};
use mainstay_sources::{self as sources, etcd, kubernetes};
use tokio::task::JoinHandle;

use crate::{
    failure::Failure,
    judge::{self, Judge},
};

/// One place where resources come from.
#[derive(Debug)]
pub(super) enum Origin {
    /// Files.
    Directory { path: PathBuf, deletions: Deletions, judge: Judge },
    /// Generations in etcd.
    Etcd(Box<etcd::Settings>),
    /// Services of Kubernetes.
    Kubernetes(Box<kubernetes::Settings>),
}

impl Origin {
    /// Brings what is there now, and follows it from then on, as long as the returned value lives.
    pub(super) async fn follow(self, intake: &Intake, control_plane: &ControlPlane) -> Result<Following, Failure> {
        let feed = intake.feed(self.to_string());
        match self {
            Self::Directory { path, deletions, judge } => {
                let putting = feed.clone();
                let put = move |snapshots| putting.bring(snapshots);
                let watch = follow_directory(&path, deletions, move |sources: &_| judge.sources(sources), put).await;
                let watch = watch.map_err(|errors| unreadable(&path, &errors))?;
                Ok(Following::Task(tokio::spawn(tell(watch, feed))))
            }
            Self::Etcd(settings) => {
                let following = etcd::follow(*settings, feed);
                following.health().guard(control_plane);
                Ok(Following::Engine(following))
            }
            Self::Kubernetes(settings) => {
                let following = kubernetes::follow(*settings, feed).await;
                let following =
                    following.map_err(|error| Failure::failed(format!("--kubernetes: {error}")).tip(ACCESS))?;
                following.health().guard(control_plane);
                Ok(Following::Engine(following))
            }
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory { path, .. } => path.display().fmt(f),
            Self::Etcd(settings) => write!(f, "etcd scope {}", settings.scope),
            Self::Kubernetes(settings) if settings.namespaces.is_empty() => f.write_str("Kubernetes"),
            Self::Kubernetes(settings) => write!(f, "Kubernetes namespaces {}", settings.namespaces.join(", ")),
        }
    }
}

/// The names of all, for the first line.
pub(super) fn names(origins: &[Origin]) -> String {
    match origins {
        [] => "no directory".to_owned(),
        origins => origins.iter().map(Origin::to_string).collect::<Vec<_>>().join(" and "),
    }
}

/// What follows an origin; it ends with this.
#[derive(Debug)]
pub(super) enum Following {
    Task(JoinHandle<()>),
    #[expect(dead_code, reason = "it is held for what its end does")]
    Engine(sources::Following),
}

impl Drop for Following {
    fn drop(&mut self) {
        match self {
            Self::Task(task) => task.abort(),
            // Ends by itself.
            Self::Engine(_) => {}
        }
    }
}

/// Tells the intake how reading the files goes; what is read is brought already.
async fn tell(mut watch: DirectoryWatch, feed: Feed) {
    loop {
        let reload = tokio::select! {
            Some(reload) = watch.next() => reload,
            () = feed.asked() => {
                watch.reload();
                continue;
            }
        };
        match reload {
            Reload::Applied { .. } => {}
            Reload::Unchanged => feed.unchanged(),
            Reload::Rejected(errors) => feed.reject(errors.0.iter().map(ToString::to_string).collect()),
            Reload::Waiting(files) => {
                let files: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
                feed.wait(format!("files that are still being written: {}", files.join(", ")));
            }
        }
    }
}

fn unreadable(directory: &std::path::Path, errors: &LoadErrors) -> Failure {
    let reasons: Vec<_> = errors.0.iter().map(|error| format!("\n  {error}")).collect();
    Failure::failed(format!("cannot serve {}:{}", directory.display(), reasons.concat()))
        .tip(judge::tip(errors).unwrap_or(TIP))
}

const TIP: &str =
    "correct the files; once it serves, wrong files are only reported. An empty directory needs --allow-empty";
const ACCESS: &str = "in a pod, mount the token of a service account; elsewhere name a kubeconfig with --kubeconfig";
