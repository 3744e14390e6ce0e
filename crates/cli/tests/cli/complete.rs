//! What shells and `man` are told.

use std::fs;

use crate::program::{mainstay, text};

#[test]
fn completions_know_every_command_and_its_flags() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = mainstay(&["completions", shell]);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{shell}");
        let script = text(&output.stdout);
        for word in ["explain", "dash", "fail-on-failed-rpc", "token-file"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(mainstay(&["completions", "sh"]).status.code(), Some(2));
}

#[test]
fn there_is_a_man_page_for_each_command() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("man1");
    let output = mainstay(&["man", pages.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for (page, part) in [("mainstay.1", "mainstay\\-serve"), ("mainstay-load.1", "qps"), ("mainstay-dash.1", "token")] {
        let written = fs::read_to_string(pages.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(written.starts_with(".ie") || written.contains(".TH"), "{page} is not for man");
        assert!(written.contains(part), "{page}: {part}");
    }
    let taken = pages.join("mainstay.1");
    assert_eq!(mainstay(&["man", taken.to_str().unwrap()]).status.code(), Some(1));
}
