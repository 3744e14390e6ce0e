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
        "--allow <OUTAGE>",
        "--svg <FILE>",
    ] {
        assert!(help.contains(flag), "{flag}: {help}");
    }
    assert!(help.lines().count() < 32, "{help}");
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
    assert!(transcript.contains("  > open server0 Sotw\n"), "{transcript}");
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
    let directory = tempfile::tempdir().unwrap();
    let picture = directory.path().join("outages.svg");
    let setup = ["sim", "--bootstrap", &bootstrap, "--resources", &example("config")];
    let output = mainstay(&[&setup[..], &["--svg", picture.to_str().unwrap()]].concat());
    let stdout = text(&output.stdout);
    assert!(stdout.starts_with("xds:///greeter: 127.0.0.1:18000\n  A  /"), "{stdout}");
    let of = |id: &str| stdout.split("\n\n").find(|part| part.starts_with(&format!("{id}@"))).unwrap_or_default();
    assert_eq!(
        of("down-in-use"),
        "\
down-in-use@127.0.0.1:18000  127.0.0.1:18000 refuses connections
  A  ··········|···············|······························
    20.00 s  127.0.0.1:18000 refuses connections
    20.00 s  the stream to 127.0.0.1:18000 ended, next one at once: connection lost: connection reset
    20.00 s  127.0.0.1:18000 is unreachable, next attempt in 1.0 s: cannot connect: connection refused
    50.00 s  everything works again
  costs no call"
    );
    assert!(of("down-at-start").contains("\n  A is lost for "), "{stdout}");
    assert_eq!(output.status.code(), Some(1), "calls are lost while the only server is down at the start");
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("error: calls are lost in 3 of 6 outages\n"), "{stderr}");
    // What is said to help was rehearsed: both do, if only from the second start on.
    for remedy in ["last-good files", "a second server in xds_servers"] {
        assert!(stdout.contains(&format!("\n  {remedy}")), "{stdout}");
    }
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg ") && picture.contains("class=\"fail\"") && picture.ends_with("</svg>\n"));

    // As a gate: what is known is allowed, by kind or by server, and what is not known is a mistake.
    let allow = ["--allow", "down-at-start,unreachable-at-start,silent-at-start@127.0.0.1:18000"];
    let output = mainstay(&[&setup[..], &allow].concat());
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    assert!(text(&output.stdout).ends_with("no call is lost in any of these outages but those allowed\n"));
    let output = mainstay(&[&setup[..], &["--allow", "flood"]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("error: --allow flood: there is no such outage\n"));
}

#[test]
fn two_servers_survive_the_loss_of_one() {
    let directory = tempfile::tempdir().unwrap();
    let bootstrap = directory.path().join("bootstrap.json");
    let server = |port| format!(r#"{{"server_uri": "10.0.0.1:{port}", "channel_creds": [{{"type": "insecure"}}]}}"#);
    std::fs::write(&bootstrap, format!(r#"{{"xds_servers": [{}, {}]}}"#, server(1), server(2))).unwrap();
    let setup = ["sim", "--bootstrap", bootstrap.to_str().unwrap(), "--resources", &example("config")];
    let output = mainstay(&[&setup[..], &["--json"]].concat());
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let outages = told["outages"].as_array().unwrap();
    assert_eq!(outages.len(), 1 + 3 * 6);
    for outage in outages {
        let id = outage["id"].as_str().unwrap();
        let is_lost = !outage["costs"].as_array().unwrap().is_empty();
        // One that is alive and says nothing of a resource says by that that there is none (A57).
        let is_believed = id == "silent-at-start@10.0.0.1:1";
        assert_eq!(is_lost, id.ends_with("-at-start@all") || is_believed, "{outage}");
    }
    let down = outages.iter().find(|outage| outage["id"] == "down-at-start@10.0.0.1:1").unwrap();
    let timeline = down["timeline"].to_string();
    assert!(timeline.contains("fell back to 10.0.0.1:2") && timeline.contains("returned to 10.0.0.1:1"), "{timeline}");
    // Another server would be down with all of them; files would not.
    let remedies = told["remedies"].as_array().unwrap();
    assert_eq!(remedies.len(), 1, "{remedies:?}");
    assert!(remedies[0]["what"].as_str().unwrap().starts_with("last-good files"), "{remedies:?}");
    assert_eq!(remedies[0]["mends"].as_array().unwrap().len(), 2, "{remedies:?}");
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
        (&["--bootstrap", &bootstrap, "--resources", "/nowhere"], 2, "error: cannot read /nowhere:\n".to_owned()),
        (
            &["--bootstrap", "/nowhere", "--resources", &config],
            2,
            "error: cannot read /nowhere: No such file".to_owned(),
        ),
        (
            &["--bootstrap", bad, "--resources", &config],
            2,
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

#[test]
fn a_fleet_is_played_and_counted_sc19() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str| directory.path().join(name).display().to_string();
    let (csv, svg) = (file("f1.csv"), file("f1.svg"));
    let output = mainstay(&["sim", "fleet", "F1", "--clients", "50", "--csv", &csv, "--svg", &svg, "--follow", "3"]);
    let stdout = text(&output.stdout);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{stdout}");
    assert!(
        stdout.starts_with("F1: a replica hands all its clients over to another, 50 clients, simulated"),
        "{stdout}"
    );
    assert!(
        stdout.contains("the stream to server-0 ended") && stdout.trim_end().ends_with("everything held"),
        "{stdout}"
    );
    let read = |name: &str| std::fs::read_to_string(name).expect("a file");
    assert!(read(&csv).lines().count() > 10 && read(&svg).starts_with("<svg"));

    let output = mainstay(&["sim", "fleet", "f2", "--clients", "20", "--outage", "3s", "--rules", "peers", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((report["scenario"].as_str(), report["clients"].as_u64()), (Some("F2"), Some(20)));
    assert_eq!((report["control_planes"][1]["met_by"].as_u64(), report["failed"].as_u64()), (Some(0), Some(0)));

    for (wrong, what) in [
        (&["sim", "fleet", "F99"][..], "there are F1, F2"),
        (&["sim", "fleet", "--svg", &svg], "--csv and --svg are for one scenario"),
        (&["sim", "fleet", "F1", "--clients", "5", "--follow", "5"], "there are clients 0 to 4"),
        (&["sim", "fleet", "F1", "--clients", "0"], "--clients"),
        (&["sim", "--seeds", "5", "fleet"], "cannot be used with"),
    ] {
        let output = mainstay(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(text(&output.stderr).contains(what), "{wrong:?}: {}", text(&output.stderr));
    }
}
