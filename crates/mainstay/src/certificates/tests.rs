//! Certificates in files, as operators and their tools put them there.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mainstay_xds::bootstrap::{CertificateFiles, IdentityFiles};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use tempfile::TempDir;

use super::file_watcher::{Parts, Shared};
use super::{CertificateError, CertificateProvider, Certificates, FileWatcher, SpiffeBundleMap, Trust, names_of};

/// B-41: equal configs are one watcher; the last user stops it.
#[test]
fn equal_watchers_are_one() {
    let files = Files::new();
    let (a, b) = (FileWatcher::of(&files.config()), FileWatcher::of(&files.config()));
    assert!(std::sync::Arc::ptr_eq(&a, &b));
    let other = CertificateFiles { refresh_interval: Duration::from_secs(1), ..files.config() };
    assert!(!std::sync::Arc::ptr_eq(&a, &FileWatcher::of(&other)));
    let weak = std::sync::Arc::downgrade(&a);
    drop((a, b));
    assert!(weak.upgrade().is_none());
}

/// S-26: every way in which files are replaced is noticed.
#[cfg(unix)]
#[tokio::test]
async fn files_are_replaced_in_place_by_rename_and_by_link() {
    let files = Files::new();
    let first = files.issue("one");
    first.write(files.path());
    let watcher = FileWatcher::of(&files.config());
    assert_eq!(until(&watcher, |_| true).await, "one");

    files.issue("two").write(files.path());
    assert_eq!(until(&watcher, |name| name != "one").await, "two", "written in place");

    files.issue("three").write(&files.dir("new"));
    for name in ["cert.pem", "key.pem"] {
        std::fs::rename(files.path().join("new").join(name), files.path().join(name)).unwrap();
    }
    assert_eq!(until(&watcher, |name| name != "two").await, "three", "renamed");

    // As Kubernetes does it: the files lead through a link that is exchanged.
    files.issue("four").write(&files.dir("v4"));
    files.issue("five").write(&files.dir("v5"));
    let (data, next) = (files.path().join("..data"), files.path().join("..next"));
    std::os::unix::fs::symlink("v4", &data).unwrap();
    for name in ["cert.pem", "key.pem"] {
        std::fs::remove_file(files.path().join(name)).unwrap();
        std::os::unix::fs::symlink(Path::new("..data").join(name), files.path().join(name)).unwrap();
    }
    assert_eq!(until(&watcher, |name| name != "three").await, "four", "linked");
    std::os::unix::fs::symlink("v5", &next).unwrap();
    std::fs::rename(&next, &data).unwrap();
    assert_eq!(until(&watcher, |name| name != "four").await, "five", "by another link");
}

/// A panic of the thread that reads files takes nothing away, and what is new is still noticed.
#[tokio::test]
async fn a_reader_that_panics_begins_anew() {
    let files = Files::new();
    files.issue("one").write(files.path());
    let (panics, panicked) = std::sync::mpsc::channel();
    let runs = AtomicUsize::new(0);
    let run = move |shared: &Shared, parts: &mut Parts| {
        if runs.fetch_add(1, Ordering::Relaxed) < 2 {
            shared.load(parts);
            panics.send(()).unwrap();
            panic!("over what is in a file");
        }
        shared.run(parts);
    };
    let watcher = FileWatcher::start_with(files.config(), Duration::from_millis(1), run);
    assert_eq!(until(&watcher, |_| true).await, "one");
    for _ in 0..2 {
        panicked.recv().unwrap();
    }
    assert_eq!(until(&watcher, |_| true).await, "one");
    files.issue("two").write(files.path());
    assert_eq!(until(&watcher, |name| name != "one").await, "two");
}

/// S-26: what cannot be used takes nothing away.
#[tokio::test]
async fn what_cannot_be_used_leaves_what_there_was() {
    let files = Files::new();
    files.issue("one").write(files.path());
    let watcher = FileWatcher::of(&files.config());
    assert_eq!(until(&watcher, |_| true).await, "one");
    let [half, other] = [files.issue("two"), files.issue("three")];
    std::fs::write(files.path().join("cert.pem"), &half.certificate[..half.certificate.len() / 2]).unwrap();
    std::fs::write(files.path().join("key.pem"), &other.key).unwrap();
    std::fs::remove_file(files.path().join("ca.pem")).unwrap();
    // This one is read after the others were found bad.
    let [second] = [files.issue("four")];
    second.write(files.path());
    assert_eq!(until(&watcher, |name| name != "one").await, "four", "with the roots from before");
    assert!(matches!(watcher.certificates(), Ok(Certificates { trust: Some(Trust::Roots(_)), .. })));
}

/// TL-10: a map that becomes bad leaves the one before in use, and does not keep our own certificate from being renewed.
#[tokio::test]
async fn a_bad_bundle_map_leaves_the_one_before() {
    let files = Files::new();
    files.issue("one").write(files.path());
    let x5c: String = files.ca.pem().lines().filter(|line| !line.starts_with("-----")).collect();
    let map = |domain: &str| {
        format!(
            r#"{{"trust_domains": {{{domain:?}: {{"keys": [{{"kty": "EC", "use": "x509-svid", "x5c": [{x5c:?}]}}]}}}}}}"#
        )
    };
    let path = files.path().join("bundles.json");
    std::fs::write(&path, map("first.example")).unwrap();
    // The roots are not looked at where there is a map.
    std::fs::remove_file(files.path().join("ca.pem")).unwrap();
    let watcher =
        FileWatcher::of(&CertificateFiles { spiffe_trust_bundle_map_file: Some(path.clone()), ..files.config() });
    let knows = |domain: &str| match watcher.certificates() {
        Ok(Certificates { trust: Some(Trust::Spiffe(map)), .. }) => map.roots(domain).is_some(),
        other => panic!("{other:?}"),
    };
    assert_eq!(until(&watcher, |_| true).await, "one");
    assert!(knows("first.example"));
    std::fs::write(&path, map("Not A Domain")).unwrap();
    files.issue("two").write(files.path());
    assert_eq!(until(&watcher, |name| name != "one").await, "two");
    assert!(knows("first.example"));
    std::fs::write(&path, map("second.example")).unwrap();
    files.issue("three").write(files.path());
    assert_eq!(until(&watcher, |name| name != "two").await, "three");
    assert!(knows("second.example") && !knows("first.example"));
}

/// TL-14: a certificate of our own that has expired is used: the other side decides.
#[tokio::test]
async fn our_own_certificate_is_used_though_it_has_expired() {
    let files = Files::new();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["late".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let certificate = params.signed_by(&key, &files.ca).unwrap();
    Issued { certificate: certificate.pem(), key: key.serialize_pem(), ca: files.ca.pem() }.write(files.path());
    assert_eq!(until(&FileWatcher::of(&files.config()), |_| true).await, "late");
}

/// S-26: before the first good load it is said what is missing.
#[tokio::test]
async fn what_is_missing_is_named() {
    let files = Files::new();
    let watcher = FileWatcher::of(&files.config());
    let error = loop {
        let changed = watcher.changed();
        match watcher.certificates() {
            Err(CertificateError::Pending) => changed.await,
            Err(error) => break error,
            Ok(_) => panic!("there is no certificate"),
        }
    };
    assert!(error.to_string().starts_with(&files.path().join("cert.pem").display().to_string()), "{error}");
    files.issue("one").write(files.path());
    assert_eq!(until(&watcher, |_| true).await, "one");
}

/// S-28, A87: one bad entry makes the whole map bad, and the text says which.
#[test]
fn bundle_maps_are_read_whole_or_not_at_all() {
    let x5c: String = Files::new().ca.pem().lines().filter(|line| !line.starts_with("-----")).collect();
    let key = |kty: &str, usage: &str, x5c: &[&str]| serde_json::json!({ "kty": kty, "use": usage, "x5c": x5c });
    let map = |domain: &str, keys: Vec<serde_json::Value>| {
        let good = serde_json::json!({ "keys": [key("EC", "x509-svid", &[&x5c])], "spiffe_sequence": 7, "extra": 1 });
        serde_json::json!({ "trust_domains": { "good.example": good, domain: { "keys": keys } } }).to_string()
    };
    for (json, expected) in [
        (r#"{"trust_domains": {}}"#.to_owned(), None),
        (map("d", vec![]), None),
        (map("d", vec![key("EC", "x509-svid", &[&x5c]), key("RSA", "x509-svid", &[&x5c])]), None),
        (map("d", vec![key("OKP", "jwt-svid", &[]), key("EC", "x509-svid", &[&x5c])]), None),
        ("{".to_owned(), Some("EOF while parsing")),
        ("{}".to_owned(), Some("missing field `trust_domains`")),
        (r#"{"trust_domains": {"d": {}}}"#.to_owned(), Some("missing field `keys`")),
        (map("D", vec![]), Some("trust domain \"D\": not a name")),
        (map("d", vec![key("EC", "sig", &[&x5c])]), Some("trust domain \"d\": keys[0]: use is \"sig\"")),
        (map("d", vec![key("EC", "", &[&x5c])]), Some("use is \"\"")),
        (map("d", vec![key("OKP", "x509-svid", &[&x5c])]), Some("kty is \"OKP\"")),
        (map("d", vec![key("EC", "x509-svid", &[])]), Some("x5c has 0 entries")),
        (map("d", vec![key("EC", "x509-svid", &[&x5c, &x5c])]), Some("x5c has 2 entries")),
        (map("d", vec![key("EC", "x509-svid", &["?"])]), Some("x5c: ")),
        (map("d", vec![key("EC", "x509-svid", &["AAAA"])]), Some("x5c: ")),
    ] {
        match (SpiffeBundleMap::from_json(json.as_bytes()), expected) {
            (Ok(map), None) => assert!(map.roots("unknown.example").is_none()),
            (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (read, expected) => panic!("{read:?} for {json}, not {expected:?}"),
        }
    }
}

#[test]
fn names_of_every_kind_are_found() {
    let mut params = CertificateParams::new(vec!["shop.example.com".to_owned(), "10.0.0.1".to_owned()]).unwrap();
    params.subject_alt_names.push(SanType::URI("spiffe://example.com/shop".try_into().unwrap()));
    params.subject_alt_names.push(SanType::Rfc822Name("shop@example.com".try_into().unwrap()));
    params.subject_alt_names.push(SanType::IpAddress("2001:db8::1".parse().unwrap()));
    let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
    let expected = "DNS \"shop.example.com\", URI \"spiffe://example.com/shop\", email \"shop@example.com\", \
                    IP 10.0.0.1, IP 2001:db8::1";
    assert_eq!(names_of(certificate.der()).unwrap().to_string(), expected);
    let nameless = CertificateParams::default().self_signed(&KeyPair::generate().unwrap()).unwrap();
    assert_eq!(names_of(nameless.der()).unwrap().to_string(), "no name");
    assert!(names_of(b"no certificate").is_err());
}

/// A directory with certificates of one authority.
struct Files {
    directory: TempDir,
    ca: CertifiedIssuer<'static, KeyPair>,
}

struct Issued {
    certificate: String,
    key: String,
    ca: String,
}

impl Files {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { directory: tempfile::tempdir().unwrap(), ca }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn dir(&self, name: &str) -> std::path::PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    }

    fn config(&self) -> CertificateFiles {
        CertificateFiles {
            identity: Some(IdentityFiles {
                certificate_file: self.path().join("cert.pem"),
                private_key_file: self.path().join("key.pem"),
            }),
            ca_certificate_file: Some(self.path().join("ca.pem")),
            ..Default::default()
        }
    }

    fn issue(&self, name: &str) -> Issued {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.ca).unwrap();
        Issued { certificate: certificate.pem(), key: key.serialize_pem(), ca: self.ca.pem() }
    }
}

impl Issued {
    fn write(&self, directory: &Path) {
        for (name, content) in [("ca.pem", &self.ca), ("cert.pem", &self.certificate), ("key.pem", &self.key)] {
            std::fs::write(directory.join(name), content).unwrap();
        }
    }
}

/// The name in the certificate that a watcher provides, as soon as it is what is awaited.
async fn until(watcher: &FileWatcher, awaited: impl Fn(&str) -> bool) -> String {
    loop {
        let changed = watcher.changed();
        if let Ok(Certificates { identity: Some(identity), .. }) = watcher.certificates() {
            let names = names_of(&identity.certified_key().cert[0]).unwrap();
            if awaited(&names.dns[0]) {
                return names.dns[0].clone();
            }
        }
        tokio::time::timeout(Duration::from_secs(20), changed).await.expect("a change");
    }
}
