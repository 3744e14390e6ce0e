//! The certificate provider `file_watcher`: files that are read again when they change (A29, S-26).
//!
//! A thread looks at the files twice a second, and reads them when one of them is another one than before: another inode,
//! time or size. Looking costs a few microseconds. It sees what a watch on a file does not, above all that a link now
//! leads elsewhere, as Kubernetes does it; it works on every file system; and it needs no runtime, as it serves
//! channels on several, each of which may end.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use mainstay_xds::bootstrap::CertificateFiles;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use tokio::sync::watch;

use super::{
    CertificateError, CertificateProvider, Certificates, Identity, SpiffeBundleMap, Trust, certificates_of, in_file,
    names, roots_of,
};
use crate::guard;
use crate::process::{self, Kind, Table};

/// Certificates in files.
#[derive(Debug)]
pub(crate) struct FileWatcher(Arc<Shared>);

/// What a watcher and its thread share.
#[derive(Debug)]
pub(super) struct Shared {
    config: CertificateFiles,
    current: ArcSwap<Result<Certificates, CertificateError>>,
    changes: watch::Sender<u64>,
    stopped: Mutex<bool>,
    stop: Condvar,
}

/// The watchers of the process: equal ones are one (B-41).
#[derive(Default)]
struct Watchers(Vec<Weak<FileWatcher>>);

impl Table for Watchers {
    const KIND: Kind = Kind::FileWatchers;
}

/// Which files there are, and in which state.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fingerprint(Vec<Option<FileState>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct FileState {
    /// Device and inode, where there are such things.
    id: (u64, u64),
    modified: Option<SystemTime>,
    size: u64,
}

impl FileWatcher {
    /// The watcher of these files, started if there is none.
    pub(crate) fn of(config: &CertificateFiles) -> Arc<Self> {
        let Watchers(watchers) = &mut *process::table();
        watchers.retain(|watcher| watcher.strong_count() > 0);
        let running = watchers.iter().filter_map(Weak::upgrade).find(|watcher| watcher.0.config == *config);
        running.unwrap_or_else(|| {
            let watcher = Arc::new(Self::start(config.clone()));
            watchers.push(Arc::downgrade(&watcher));
            watcher
        })
    }

    fn start(config: CertificateFiles) -> Self {
        Self::start_with(config, PANIC_PAUSE, Shared::run)
    }

    /// Starts a watcher that does its work by `run`, and again after a pause if that panics.
    pub(super) fn start_with(
        config: CertificateFiles,
        pause: Duration,
        run: impl Fn(&Shared, &mut Parts) + Send + 'static,
    ) -> Self {
        let shared = Arc::new(Shared {
            config,
            current: ArcSwap::from_pointee(Err(CertificateError::Pending)),
            changes: watch::Sender::new(0),
            stopped: Mutex::new(false),
            stop: Condvar::new(),
        });
        let thread = shared.clone();
        let work = move || thread.keep_running(pause, run);
        let started = std::thread::Builder::new().name("certificates".to_owned()).spawn(work);
        if let Err(error) = started {
            shared.publish(Err(CertificateError::Other(format!("no thread to read files with: {error}"))));
        }
        Self(shared)
    }
}

impl CertificateProvider for FileWatcher {
    fn certificates(&self) -> Result<Certificates, CertificateError> {
        Result::clone(&self.0.current.load())
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let mut changes = self.0.changes.subscribe();
        Box::pin(async move {
            // The sender is ours: it cannot be gone.
            let _ = changes.changed().await;
        })
    }
}

impl Drop for FileWatcher {
    fn drop(&mut self) {
        *self.0.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.stop.notify_all();
    }
}

impl Shared {
    /// A panic over what is in a file must not leave old certificates in use for ever. What was read before it is whole,
    /// and stays.
    fn keep_running(&self, pause: Duration, run: impl Fn(&Self, &mut Parts)) {
        let mut parts = Parts::default();
        while let Err(panic) = guard::catch(|| run(self, &mut parts)) {
            tracing::error!(%panic, "reading certificates panicked, and begins anew");
            if self.is_stopped_within(pause) {
                return;
            }
        }
    }

    pub(super) fn run(&self, parts: &mut Parts) {
        let mut seen = None;
        let mut refresh_at = Instant::now();
        let mut warn_at = Instant::now();
        loop {
            let files = Fingerprint::of(&self.config);
            if seen.as_ref() != Some(&files) || Instant::now() >= refresh_at {
                // What is read may be newer than what was seen: then it is read once more, which does no harm.
                seen = Some(files);
                refresh_at = Instant::now() + self.config.refresh_interval;
                if !self.load(parts) {
                    return;
                }
            }
            if Instant::now() >= warn_at && self.warn_of_expiry() {
                warn_at = Instant::now() + WARN_INTERVAL;
            }
            if self.is_stopped_within(LOOK_INTERVAL) {
                return;
            }
        }
    }

    /// Reads the files. They may be half replaced at this moment, so what is bad is looked at again before it counts.
    /// What was good before stays, each for itself: a bad list of roots does not keep our own certificate from being
    /// renewed. Whether to go on.
    pub(super) fn load(&self, parts: &mut Parts) -> bool {
        let mut errors = parts.read(&self.config);
        for _ in 0..RETRIES {
            let Some(error) = errors.first() else { break };
            if self.current.load().is_err() {
                self.publish(Err(error.clone())); // Nobody has to wait to hear what is missing.
            }
            if self.is_stopped_within(RETRY_INTERVAL) {
                return false;
            }
            errors = parts.read(&self.config);
        }
        for error in &errors {
            tracing::warn!(%error, "certificates cannot be used; what there was before stays in use");
        }
        match (parts.certificates(&self.config), errors.into_iter().next()) {
            (Some(certificates), _) => {
                if !matches!(&**self.current.load(), Ok(current) if current.is(&certificates)) {
                    self.publish(Ok(certificates));
                }
            }
            (None, Some(error)) => self.publish(Err(error)),
            (None, None) => {}
        }
        true
    }

    fn publish(&self, loaded: Result<Certificates, CertificateError>) {
        self.current.store(Arc::new(loaded));
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Says so if our own certificate has expired, which is used all the same: the other side decides. Whether it did.
    fn warn_of_expiry(&self) -> bool {
        let current = self.current.load();
        let Ok(Certificates { identity: Some(identity), .. }) = &**current else { return false };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let end = identity.certified_key().cert.first().and_then(|leaf| names::not_after(leaf));
        let expired = end.is_some_and(|end| u64::try_from(end).unwrap_or(0) < now);
        if expired && let Some(files) = &self.config.identity {
            tracing::warn!(file = %files.certificate_file.display(), "our certificate has expired");
        }
        expired
    }

    fn is_stopped_within(&self, wait: Duration) -> bool {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.stop.wait_timeout_while(stopped, wait, |stopped| !*stopped);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Fingerprint {
    fn of(config: &CertificateFiles) -> Self {
        Self(files(config).map(|path| path.metadata().ok().map(|metadata| FileState::of(&metadata))).collect())
    }
}

fn files(config: &CertificateFiles) -> impl Iterator<Item = &PathBuf> {
    let identity = config.identity.iter().flat_map(|files| [&files.certificate_file, &files.private_key_file]);
    identity.chain(&config.ca_certificate_file).chain(&config.spiffe_trust_bundle_map_file)
}

impl FileState {
    fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let id = {
            use std::os::unix::fs::MetadataExt;
            (metadata.dev(), metadata.ino())
        };
        #[cfg(not(unix))]
        let id = (0, 0);
        Self { id, modified: metadata.modified().ok(), size: metadata.len() }
    }
}

/// What was last read that is good.
#[derive(Default)]
pub(super) struct Parts {
    identity: Option<Read<Identity>>,
    trust: Option<Read<Trust>>,
}

/// Something with the bytes that it was made of: as long as they are the same, so is it.
struct Read<T> {
    bytes: [Vec<u8>; 2],
    value: T,
}

impl Parts {
    /// Reads the files and keeps what is good. What is not.
    fn read(&mut self, config: &CertificateFiles) -> Vec<CertificateError> {
        let identity = config.identity.as_ref().map_or(Ok(()), |files| {
            let (certificate, key) = (files.certificate_file.as_path(), files.private_key_file.as_path());
            let bytes = [read(certificate)?, read(key)?];
            renew(&mut self.identity, bytes, |[chain, private]| {
                let chain = certificates_of(chain).map_err(|cause| in_file(certificate, cause))?;
                let private = PrivateKeyDer::from_pem_slice(private)
                    .map_err(|error| in_file(key, format!("no private key in it: {error}")))?;
                let identity = Identity::from_der(chain, private);
                identity.map_err(|error| in_file(certificate, format!("with the key of {}: {error}", key.display())))
            })
        });
        // The roots are for clients that know no bundle maps.
        let trust = match (&config.spiffe_trust_bundle_map_file, &config.ca_certificate_file) {
            (Some(path), _) => read(path).and_then(|bytes| {
                renew(&mut self.trust, [bytes, Vec::new()], |[bytes, _]| {
                    let map = SpiffeBundleMap::from_json(bytes);
                    map.map(Arc::new).map(Trust::Spiffe).map_err(|error| in_file(path, error.to_string()))
                })
            }),
            (None, Some(path)) => read(path).and_then(|bytes| {
                renew(&mut self.trust, [bytes, Vec::new()], |[bytes, _]| {
                    roots_of(bytes).map(Arc::new).map(Trust::Roots).map_err(|cause| in_file(path, cause))
                })
            }),
            (None, None) => Ok(()),
        };
        [identity, trust].into_iter().filter_map(Result::err).collect()
    }

    /// Everything that was asked for, once there is all of it.
    fn certificates(&self, config: &CertificateFiles) -> Option<Certificates> {
        let wants_trust = config.ca_certificate_file.is_some() || config.spiffe_trust_bundle_map_file.is_some();
        let is_whole = self.identity.is_some() == config.identity.is_some() && self.trust.is_some() == wants_trust;
        is_whole.then(|| Certificates {
            identity: self.identity.as_ref().map(|read| read.value.clone()),
            trust: self.trust.as_ref().map(|read| read.value.clone()),
        })
    }
}

fn renew<T>(
    slot: &mut Option<Read<T>>,
    bytes: [Vec<u8>; 2],
    make: impl FnOnce([&[u8]; 2]) -> Result<T, CertificateError>,
) -> Result<(), CertificateError> {
    if slot.as_ref().is_none_or(|read| read.bytes != bytes) {
        let value = make([&bytes[0], &bytes[1]])?;
        *slot = Some(Read { bytes, value });
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, CertificateError> {
    std::fs::read(path).map_err(|error| in_file(path, error.to_string()))
}

/// The same once, without a watcher: for connections to xDS servers, which are rare.
pub(crate) fn read_once(config: &CertificateFiles) -> Result<Certificates, CertificateError> {
    let mut parts = Parts::default();
    match parts.read(config).pop() {
        Some(error) => Err(error),
        None => parts.certificates(config).ok_or(CertificateError::Pending),
    }
}

const LOOK_INTERVAL: Duration = Duration::from_millis(500);
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const RETRIES: u32 = 3;
/// After a panic.
const PANIC_PAUSE: Duration = Duration::from_secs(10);
const WARN_INTERVAL: Duration = Duration::from_secs(3600);
