//! `mainstay publish` and `serve --etcd` where there is no etcd. With one: `interop/etcd/run`.

use std::{fs, path::Path};

use crate::program::{Running, mainstay, text};

#[test]
fn without_etcd_publishing_fails_in_time_and_says_why() {
    // FB-28
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/config");
    let examples = examples.to_str().unwrap();
    let output = mainstay(&["publish", examples, "--etcd", "http://127.0.0.1:1", "--timeout", "300ms"]);
    assert_eq!(output.status.code(), Some(1));
    let why = text(&output.stderr);
    assert!(why.starts_with("error: nothing was published: etcd could not be written to"), "{why}");
    assert!(why.contains("http://127.0.0.1:1"), "{why}");
}

#[test]
fn what_has_errors_is_not_published() {
    // FB-25: before anything is written, so that etcd is not even asked.
    let directory = tempfile::tempdir().unwrap();
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../check/tests/cases/MS201/fail.yaml");
    fs::copy(case, directory.path().join("fail.yaml")).unwrap();
    let path = directory.path().to_str().unwrap();
    let output = mainstay(&["publish", path, "--etcd", "http://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("MS201"), "{}", text(&output.stderr));
    let unchecked = mainstay(&["publish", path, "--etcd", "http://127.0.0.1:1", "--no-check", "--timeout", "10ms"]);
    assert!(text(&unchecked.stderr).contains("could not be written to"), "{}", text(&unchecked.stderr));
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    for (args, expected) in [
        (&["publish", "x"][..], "--etcd names the members"),
        (&["publish", "x", "--etcd", "ftp://x"], "expected http: or https:"),
        (&["publish", "x", "--etcd", "http://x", "--scope", "a/b"], "is no scope"),
        (&["serve"], "<DIR>"),
        (&["serve", "--etcd", "https://x", "--etcd-ca", "/no/such/file"], "/no/such/file"),
    ] {
        let output = mainstay(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(expected), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_replica_that_never_saw_etcd_says_so_and_goes_on() {
    // FB-27
    let mut replica = Running::start(&["serve", "--etcd", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"]);
    assert!(replica.line().starts_with("serving etcd scope default on 127.0.0.1:"));
    assert!(replica.line().starts_with("waiting for the first generation from etcd"));
    replica.signal("TERM");
    assert_eq!(replica.end().0, 0);
}
