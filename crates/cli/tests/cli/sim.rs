//! `mainstay sim` and `mainstay soak`.

use std::path::PathBuf;

use crate::program::{mainstay, text};

#[test]
fn the_short_help_of_sim_fits_a_screen() {
    let output = mainstay(&["sim", "-h"]);
    assert_eq!(output.status.code(), Some(0));
    let help = text(&output.stdout);
    for flag in [
        "--seeds <N>",
        "--of <KIND>",
        "--first <SEED>",
        "--replay <LINE>",
        "--bootstrap <FILE>",
        "--resources <DIR>",
        "--target",
    ] {
        assert!(help.contains(flag), "{flag}: {help}");
    }
    assert!(help.lines().count() < 24, "{help}");
}

#[test]
fn a_few_seeds_are_reported_with_everything_that_was_seen() {
    let output = mainstay(&["sim", "--seeds", "20", "--first", "64"]);
    let stdout = text(&output.stdout);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{stdout}");
    assert!(stdout.starts_with("20 worlds in "), "{stdout}");
    let names = ["events", "virtual time", "faults", "fallbacks", "configurations", "RPCs", "violations"];
    let lines: Vec<_> = stdout.lines().skip(1).map(str::trim).collect();
    assert_eq!(lines.len(), names.len(), "{stdout}");
    for (line, name) in lines.iter().zip(names) {
        assert!(line.starts_with(name), "{line}");
    }
    assert!(lines.last().is_some_and(|line| line.ends_with(" 0")), "{stdout}");
}

#[test]
fn a_seed_can_be_more_than_a_channel() {
    for kind in ["channels", "clients", "histories", "lives", "servers"] {
        let output = mainstay(&["sim", "--of", kind, "--seeds", "5", "--first", "60"]);
        let stdout = text(&output.stdout);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{kind}: {stdout}");
        let of = |name: &str| stdout.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim);
        assert_eq!(of("violations"), Some("0"), "{kind}: {stdout}");
        let events = of("events").and_then(|events| events.split(' ').next()?.parse::<u64>().ok());
        assert!(events.is_some_and(|events| events > 50), "{kind}: {stdout}");
    }
    let help = mainstay(&["sim", "--help"]);
    assert!(text(&help.stdout).contains("servers:"), "{}", text(&help.stdout));
}

#[test]
fn a_replay_shows_one_world_and_always_the_same() {
    let show = || mainstay(&["sim", "--replay", "swarm-7: 0*30 9 0*10"]);
    let (first, second) = (show(), show());
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    assert_eq!(text(&first.stdout), text(&second.stdout));
    let transcript = text(&first.stdout);
    assert!(transcript.contains("  > open server0\n"), "{transcript}");
    assert!(transcript.lines().last().is_some_and(|line| line.starts_with("everything held: ")), "{transcript}");
}

#[test]
fn a_line_that_cannot_be_replayed_is_exit_code_2() {
    for (line, expected) in [
        ("nonsense", "error: --replay: expected NAME: CHOICES\n"),
        ("nowhere: 1", "error: --replay: \"nowhere\" is not the name of a world\n"),
        ("inline: one", "error: --replay: \"one\" is not a number or value*times\n"),
    ] {
        let output = mainstay(&["sim", "--replay", line]);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), expected));
    }
}

#[test]
fn an_outage_of_ones_own_setup_is_rehearsed() {
    let bootstrap = example("bootstrap.json");
    let output = mainstay(&["sim", "--bootstrap", &bootstrap, "--resources", &example("config")]);
    let stdout = text(&output.stdout);
    assert!(stdout.starts_with("xds:///greeter: 1 server, outages of 30 s\n"), "{stdout}");
    let stops = stdout.split("\n\n").find(|part| part.starts_with("127.0.0.1:18000 stops while in use\n"));
    assert_eq!(
        stops.unwrap_or_default(),
        "\
127.0.0.1:18000 stops while in use
     0.00 s  RPCs wait: waiting for the configuration
     0.00 s  RPCs are sent to cluster \"greeter-backends\"
     1.00 s  127.0.0.1:18000 stops while in use
     1.00 s  the stream to 127.0.0.1:18000 ended, next one at once: connection lost: connection reset
     1.00 s  127.0.0.1:18000 is unreachable, next attempt in 1.0 s: cannot connect: connection refused
    31.00 s  everything works again
  RPCs wait for 0.00 s and fail for 0.00 s
"
    );
    assert_eq!(output.status.code(), Some(3), "RPCs fail while the only server is down at the start");
    assert!(text(&output.stderr).starts_with("error: RPCs fail in 3 of 4 outages\n"), "{}", text(&output.stderr));
}

#[test]
fn two_servers_survive_the_loss_of_one() {
    let directory = tempfile::tempdir().unwrap();
    let bootstrap = directory.path().join("bootstrap.json");
    let server = |port| format!(r#"{{"server_uri": "10.0.0.1:{port}", "channel_creds": [{{"type": "insecure"}}]}}"#);
    std::fs::write(&bootstrap, format!(r#"{{"xds_servers": [{}, {}]}}"#, server(1), server(2))).unwrap();
    let output = mainstay(&["sim", "--bootstrap", bootstrap.to_str().unwrap(), "--resources", &example("config")]);
    let stdout = text(&output.stdout);
    let down =
        stdout.split("\n\n").find(|part| part.starts_with("10.0.0.1:1 is down at the start\n")).unwrap_or_default();
    assert!(down.contains(" s  fell back to 10.0.0.1:2\n") && down.contains("fail for 0.00 s"), "{stdout}");
    assert!(down.contains(" s  returned to 10.0.0.1:1\n"), "{down}");
}

#[test]
fn what_cannot_be_rehearsed_says_why() {
    let (bootstrap, config) = (example("bootstrap.json"), example("config"));
    let directory = tempfile::tempdir().unwrap();
    let bad = directory.path().join("bad.json");
    std::fs::write(&bad, r#"{"xds_servers": [{"server_uri": 3}]}"#).unwrap();
    let bad = bad.to_str().unwrap();
    let cases: [(&[&str], i32, String); 6] = [
        (&["--bootstrap", &bootstrap], 2, "--resources <DIR>".to_owned()),
        (&["--bootstrap", &bootstrap, "--resources", "/nowhere"], 1, "error: cannot read /nowhere:\n".to_owned()),
        (
            &["--bootstrap", "/nowhere", "--resources", &config],
            1,
            "error: cannot read /nowhere: No such file".to_owned(),
        ),
        (
            &["--bootstrap", bad, "--resources", &config],
            1,
            format!("error: {bad} is not a usable bootstrap: xds_servers[0].server_uri: found a number"),
        ),
        (
            &["--bootstrap", &bootstrap, "--resources", &config, "--target", "xds:///other"],
            2,
            format!(
                "error: xds:///other needs the Listener \"other\", which is not in {config}\n\n  \
                 tip: the Listeners there are \"greeter\"\n"
            ),
        ),
        (&["--seeds", "0"], 2, "error: invalid value '0' for '--seeds <N>'".to_owned()),
    ];
    for (args, code, expected) in cases {
        let output = mainstay(&[&["sim"], args].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        assert!(text(&output.stderr).contains(&expected), "{args:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "", "{args:?}");
    }
}

#[test]
fn a_short_soak_fails_no_rpc_and_leaves_nothing() {
    let output = mainstay(&["soak", "--duration", "2s", "--qps", "100", "--seed", "3"]);
    let stdout = text(&output.stdout);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{stdout}");
    assert!(stdout.starts_with("100 RPCs per second for 2s, seed 3\n200 RPCs in "), "{stdout}");
    for line in ["  answered    200\n", "  failed      0\n", "  left open   0 files after the end\n"] {
        assert!(stdout.contains(line), "{stdout}");
    }
}

#[test]
fn a_short_hostile_soak_fails_no_innocent_rpc_and_leaves_nothing() {
    let output = mainstay(&["soak", "--hostile", "--duration", "3s", "--qps", "100", "--seed", "3"]);
    let stdout = text(&output.stdout);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{stdout}");
    for line in ["  answered    300\n", "  failed      0\n", "  left open   0 files after the end\n"] {
        assert!(stdout.contains(line), "{stdout}");
    }
}

/// A file of `examples/`.
fn example(name: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    root.join(name).to_str().unwrap().to_owned()
}
