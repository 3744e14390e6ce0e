//! The book as far as it is about the command: what its pages tell their readers to do is done, and what is written from the program is
//! current. `crates/checks` has the rest.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs};

/// Pages that need more than the command: this one builds programs with cargo (`.ci/five-minutes`).
const FOLLOWED_ELSEWHERE: [&str; 1] = ["docs/five-minutes.md"];

#[test]
fn pages_can_be_followed_word_by_word() {
    let mut pages = Vec::new();
    collect(&root().join("docs"), "docs", &mut pages);
    pages.retain(|page| !FOLLOWED_ELSEWHERE.contains(&page.as_str()));
    pages.sort();
    assert!(pages.len() > 10, "only {pages:?} have commands");
    let programs = Path::new(env!("CARGO_BIN_EXE_mainstay")).parent().expect("a directory");
    let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap_or_default());
    // Each has its own directory and ports; the slowest wait for an outage or a timeout.
    let running: Vec<(&String, Child)> = pages.iter().map(|page| (page, follow(page, &path))).collect();
    let mut failed = Vec::new();
    for (page, child) in running {
        let output = child.wait_with_output().expect("bash runs");
        if !output.status.success() {
            failed.push(format!(
                "{page}: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            ));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn a_page_with_a_command_that_fails_and_one_that_promises_too_much_are_found() {
    let programs = Path::new(env!("CARGO_BIN_EXE_mainstay")).parent().expect("a directory");
    let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap_or_default());
    let name = format!("target/planted-{}.md", std::process::id());
    let file = root().join(&name);
    fs::create_dir_all(root().join("target")).expect("a directory");
    for (block, fault) in [
        ("$ mainstay check nowhere\n", "exit code 2 of: mainstay check nowhere"),
        ("$ mainstay check examples/config\neverything found\n", "the page shows: everything found"),
        ("$ mainstay check examples/config\nerror: 1 error\n", "the page shows: error: 1 error"),
        ("$ mainstay serve nowhere --listen 127.0.0.1:0 &\n", "ended at once: mainstay serve nowhere"),
    ] {
        fs::write(&file, format!("# Planted\n\n```console\n{block}```\n")).expect("a page");
        let output = follow(&name, &path).wait_with_output().expect("bash runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && said.contains(fault), "{block}: {said}");
    }
    fs::remove_file(&file).expect("what was written");
}

#[test]
fn the_page_of_the_command_line_is_current() {
    let mut page = String::from(
        "# Command line\n\nWritten by a test from `mainstay --help` and the help of each command: `UPDATE=1 cargo test -p mainstay-cli --test book` writes \
         it anew.\n",
    );
    let whole = help(&[]);
    page.push_str(&format!("\n## mainstay\n\n```text\n{}\n```\n", whole.trim_end()));
    for command in commands(&whole) {
        let text = help(&[&command]);
        page.push_str(&format!("\n## mainstay {command}\n\n```text\n{}\n```\n", text.trim_end()));
        for below in commands(&text) {
            let text = help(&[&command, &below]);
            page.push_str(&format!("\n### mainstay {command} {below}\n\n```text\n{}\n```\n", text.trim_end()));
        }
    }
    compare("docs/reference/command-line.md", page.as_bytes());
}

/// What `serve` has for Prometheus, as a scrape shows it.
#[test]
fn the_page_of_metrics_of_the_control_plane_is_current() {
    let mut serve = Command::new(env!("CARGO_BIN_EXE_mainstay"))
        .args(["serve", "examples/config", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .current_dir(root())
        .env_remove("RUST_LOG")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a control plane");
    let mut said = String::new();
    let mut out = serve.stdout.take().expect("its output");
    let admin = loop {
        let mut part = [0; 512];
        let read = out.read(&mut part).expect("its output");
        said.push_str(std::str::from_utf8(&part[..read]).expect("text"));
        let after = said.split_once("admin on ").and_then(|(_, rest)| rest.split_once('\n'));
        match after {
            Some((admin, _)) => break admin.to_owned(),
            None => assert!(read > 0, "no admin port: {said}"),
        }
    };
    let mut answer = String::new();
    let mut stream = TcpStream::connect(&admin).expect("the admin port");
    write!(stream, "GET /metrics HTTP/1.1\r\nhost: mainstay\r\nconnection: close\r\n\r\n").expect("a request");
    stream.read_to_string(&mut answer).expect("a response");
    serve.kill().expect("it runs");
    serve.wait().expect("it ends");

    let mut page = String::from(
        "# Metrics of the control plane\n\nWritten by a test from what `mainstay serve --admin` answers at `/metrics`, in the text form of Prometheus: \
         `UPDATE=1 cargo test -p mainstay-cli --test book` writes it anew. No label holds what clients choose.\n\n| metric | kind | labels | what it says \
         |\n|---|---|---|---|\n",
    );
    for line in answer.lines() {
        let Some((name, says)) = line.strip_prefix("# HELP ").and_then(|help| help.split_once(' ')) else { continue };
        let kind = format!("# TYPE {name} ");
        let kind = answer.lines().find_map(|line| line.strip_prefix(kind.as_str())).expect("a type");
        let total = if kind == "counter" { "_total" } else { "" };
        let sample = format!("{name}{total}{{");
        let labels = answer.lines().find_map(|line| line.strip_prefix(sample.as_str())).unwrap_or("");
        let label = labels.split_once('=').map_or("", |(label, _)| label);
        let label = if label.is_empty() { String::new() } else { format!("`{label}`") };
        page.push_str(&format!("| `{name}{total}` | {kind} | {label} | {} |\n", says.trim_end_matches('.')));
    }
    assert!(page.contains("mainstay_cp_streams") && page.contains("process_cpu_seconds"), "{answer}");
    compare("docs/reference/control-plane-metrics.md", page.as_bytes());
}

/// The timelines of `docs/outages.md`.
#[test]
fn the_pictures_of_outages_are_current() {
    let page = fs::read_to_string(root().join("docs/outages.md")).expect("a page");
    let directory = env::temp_dir().join(format!("mainstay-book-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    for (picture, bootstrap) in [("one", None), ("two", Some("two.json")), ("last-good", Some("last-good.json"))] {
        let file = match bootstrap {
            None => root().join("examples/bootstrap.json"),
            Some(name) => {
                let block =
                    page.split_once(&format!("**{name}**\n\n```json\n")).and_then(|(_, rest)| rest.split_once("```"));
                let file = directory.join(name);
                fs::write(&file, block.expect("the page has the bootstrap").0).expect("a file");
                file
            }
        };
        let svg = directory.join("outages.svg");
        let output = Command::new(env!("CARGO_BIN_EXE_mainstay"))
            .args(["sim", "--resources", "examples/config", "--bootstrap"])
            .arg(&file)
            .arg("--svg")
            .arg(&svg)
            .current_dir(root())
            .output()
            .expect("the rehearsal runs");
        let drawn = fs::read(&svg).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        compare(&format!("docs/pictures/outages-{picture}.svg"), &drawn);
    }
    fs::remove_dir_all(&directory).expect("what was written");
}

fn follow(page: &str, path: &str) -> Child {
    let mut follow = Command::new("bash");
    follow.arg(root().join(".ci/follow")).arg(page).env("PATH", path).current_dir(root());
    follow.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("bash runs")
}

/// Pages with commands.
fn collect(directory: &Path, prefix: &str, pages: &mut Vec<String>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        let path = format!("{prefix}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            collect(&entry.path(), &path, pages);
        } else if path.ends_with(".md")
            && fs::read_to_string(entry.path()).expect("a page").contains("\n```console\n$ mainstay ")
        {
            pages.push(path);
        }
    }
}

fn help(command: &[&str]) -> String {
    let mut mainstay = Command::new(env!("CARGO_BIN_EXE_mainstay"));
    // Clap fits its help to the terminal; without one it is as wide as the program wants at most.
    let output =
        mainstay.args(command).arg("--help").env("NO_COLOR", "1").env_remove("COLUMNS").stdin(Stdio::null()).output();
    let text = String::from_utf8(output.expect("the help").stdout).expect("text");
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// The commands that a help lists.
fn commands(help: &str) -> Vec<String> {
    let Some((_, list)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let lines = list.lines().take_while(|line| !line.is_empty());
    let named = lines.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    named.filter_map(|line| line.split(' ').next()).filter(|name| *name != "help").map(str::to_owned).collect()
}

fn compare(path: &str, current: &[u8]) {
    let file = root().join(path);
    if env::var_os("UPDATE").is_some() {
        fs::write(&file, current).expect("a writable tree");
    }
    let committed = fs::read(&file).unwrap_or_default();
    assert!(committed == current, "{path} is stale: run UPDATE=1 cargo test -p mainstay-cli --test book");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
