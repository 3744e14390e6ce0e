//! A real browser: headless Chromium, driven by its DevTools protocol through a pipe, which needs neither ports nor crates.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    last: u64,
    session: Option<String>,
    /// Events that came since the page was opened.
    seen: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Starts Chromium. Where there is none the test `name` says so, and is over; with REQUIRE_CHROMIUM it fails, which is how
    /// `.ci/run` calls it.
    pub(crate) fn start(name: &str) -> Option<Self> {
        let program = std::env::var("CHROMIUM").unwrap_or_else(|_| "/usr/bin/chromium".to_owned());
        if !Path::new(&program).exists() {
            assert!(std::env::var_os("REQUIRE_CHROMIUM").is_none(), "{program} is not there, and is required");
            println!("SKIPPED {name}: there is no {program}; install the package chromium");
            return None;
        }
        let profile = tempfile::tempdir().unwrap();
        // Commands come in at 3 and answers go out at 4, each ended by a zero.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>&2", &program])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--hide-scrollbars", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (sender, messages) = channel();
        let mut answers = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while answers.read_until(0, &mut message).is_ok_and(|length| length > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { return };
                if sender.send(value).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let commands = child.stdin.take().unwrap();
        let mut browser =
            Self { child, commands, messages, last: 0, session: None, seen: Vec::new(), _profile: profile };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach)["sessionId"].as_str().unwrap().to_owned();
        browser.session = Some(session);
        for domain in ["Page", "Network", "Runtime", "Log", "DOM"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// A command of the protocol, and what comes of it.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.commands.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut answer = self.messages.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{method}: {error}"));
            if answer["id"] == self.last {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].take();
            }
            self.seen.push(answer);
        }
    }

    /// How many seconds the processes that draw pages have worked, by the time of their processors.
    pub(crate) fn worked(&mut self) -> BTreeMap<u64, f64> {
        let session = self.session.take();
        let told = self.call("SystemInfo.getProcessInfo", json!({}));
        self.session = session;
        let processes = told["processInfo"].as_array().unwrap().iter().filter(|process| process["type"] == "renderer");
        processes.map(|process| (process["id"].as_u64().unwrap(), process["cpuTime"].as_f64().unwrap())).collect()
    }

    /// Opens a page, and waits until it is there.
    pub(crate) fn open(&mut self, url: &str) {
        let loaded = self.seen.iter().filter(|event| event["method"] == "Page.loadEventFired").count();
        self.call("Page.navigate", json!({ "url": url }));
        let deadline = Instant::now() + PATIENCE;
        while self.seen.iter().filter(|event| event["method"] == "Page.loadEventFired").count() == loaded {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.messages.recv_timeout(left).unwrap_or_else(|error| panic!("{url}: {error}"));
            self.seen.push(event);
        }
    }

    /// What a line of JavaScript comes to on the page.
    pub(crate) fn evaluate(&mut self, script: &str) -> Value {
        let mut result =
            self.call("Runtime.evaluate", json!({ "expression": script, "returnByValue": true, "awaitPromise": true }));
        assert!(result.get("exceptionDetails").is_none(), "{script}: {result}");
        result["result"]["value"].take()
    }

    /// Waits until a line of JavaScript is true; how long that took.
    pub(crate) fn until(&mut self, script: &str, within: Duration) -> Duration {
        let start = Instant::now();
        while self.evaluate(script) != json!(true) {
            if start.elapsed() > within {
                let page = self.evaluate("document.body.innerText");
                panic!("{script} is not true after {within:?}:\n{}", page.as_str().unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        start.elapsed()
    }

    /// The size of the window.
    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// A picture of the window.
    pub(crate) fn picture(&mut self) -> Vec<u8> {
        let picture = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        decode(picture["data"].as_str().unwrap())
    }

    /// Events of this kind since the browser was started.
    pub(crate) fn events<'a>(&'a self, method: &'a str) -> impl Iterator<Item = &'a Value> {
        self.seen.iter().filter(move |event| event["method"] == method).map(|event| &event["params"])
    }

    /// What went wrong on pages, in their own words.
    pub(crate) fn complaints(&self) -> Vec<&Value> {
        let console = self.events("Runtime.consoleAPICalled").filter(|event| event["type"] == "error");
        let log = self.events("Log.entryAdded").filter(|event| event["entry"]["level"] == "error");
        self.events("Runtime.exceptionThrown").chain(console).chain(log).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Keeps a picture for the documentation, if that is wanted.
pub(crate) fn keep(picture: &[u8], name: &str) {
    assert_eq!(picture[1..4], *b"PNG");
    if std::env::var_os("UPDATE").is_some() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/dashboard");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(name), picture).unwrap();
    }
}

/// Base64, as the protocol has it.
fn decode(text: &str) -> Vec<u8> {
    let six = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for byte in text.bytes().take_while(|byte| *byte != b'=') {
        (bits, count) = (bits << 6 | u32::from(six(byte)), count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

const PATIENCE: Duration = Duration::from_secs(60);
