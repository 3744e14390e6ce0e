//! Tests of audit loggers: what is written, by whom, and what a stuck log costs.

use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use mainstay_lb::{AuditRecord as Decision, Verdict};
use mainstay_xds::bootstrap::{AuditLoggerKinds, Bootstrap, Guards};
use mainstay_xds::resource::filter::AuditLoggerConfig;

use super::json::{line, timestamp};
use super::*;

// === lines ===

#[test]
fn a_record_is_one_line_of_json_with_the_fields_of_a59() {
    let expected = concat!(
        r#"{"grpc_audit_log":{"timestamp":"2026-11-18T01:02:03.000000004Z","rpc_method":"/pkg.Service/Foo","#,
        r#""principal":"spiffe://foo/user1","policy_name":"authz","matched_rule":"admin_access","authorized":true}}"#,
        "\n"
    );
    assert_eq!(line(&record("admin_access")), expected);
}

#[test]
fn whatever_is_in_a_record_it_stays_one_line() {
    let hostile = "a\"}}\n{\"grpc_audit_log\":\u{7}\u{2028}ä";
    let line = line(&AuditRecord { principal: hostile.into(), ..record(hostile) });
    assert_eq!(line.lines().count(), 1);
    let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(parsed["grpc_audit_log"]["matched_rule"], hostile);
    assert_eq!(parsed["grpc_audit_log"]["principal"], hostile);
}

#[test]
fn times_are_written_as_rfc_3339_says() {
    let at = |seconds, nanos| timestamp(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos));
    for (seconds, expected) in [
        (0, "1970-01-01T00:00:00.000000000Z"),
        (68_169_599, "1972-02-28T23:59:59.000000000Z"),
        (68_169_600, "1972-02-29T00:00:00.000000000Z"),
        (951_782_400, "2000-02-29T00:00:00.000000000Z"),
        (951_868_800, "2000-03-01T00:00:00.000000000Z"),
        (1_136_073_845, "2006-01-01T00:04:05.000000000Z"),
        (4_107_542_400, "2100-03-01T00:00:00.000000000Z"),
        (13_574_563_200, "2400-02-29T00:00:00.000000000Z"),
        (253_402_300_799, "9999-12-31T23:59:59.000000000Z"),
    ] {
        assert_eq!(at(seconds, 0), expected);
    }
    assert_eq!(at(1, 999_999_999), "1970-01-01T00:00:01.999999999Z");
    assert_eq!(timestamp(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000000000Z");
}

#[test]
fn a_log_that_cannot_be_written_costs_its_records_only() {
    struct Broken;
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    JsonLines::new(Broken).log(&record("a"));
}

// === queues ===

#[test]
fn az9_a_stuck_log_costs_records_and_no_rpc() {
    let gate = Arc::new(Gate::default());
    let (logger, heard) = gated(&gate);
    let queued = Queued::new(logger, AuditQueue::default().capacity(2));
    queued.log(&record("0"));
    gate.await_caller(); // It is out of the queue and stuck.
    for rule in ["1", "2", "3", "4", "5"] {
        queued.log(&record(rule));
    }
    assert_eq!(queued.lost(), 3);
    gate.open();
    let rules = || (0..3).map(|_| heard.recv_timeout(PATIENCE).unwrap());
    assert_eq!(rules().collect::<Vec<_>>(), ["0", "1", "2"], "what was in the queue is not lost");
    queued.log(&record("6"));
    assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), "6", "and it goes on");
    assert_eq!(queued.lost(), 3);
}

#[test]
fn az9_whoever_must_not_lose_a_record_waits() {
    let gate = Arc::new(Gate::default());
    let (logger, heard) = gated(&gate);
    let queued = Arc::new(Queued::new(logger, AuditQueue::default().capacity(1).on_full(OnFull::Block)));
    queued.log(&record("0"));
    gate.await_caller();
    queued.log(&record("1")); // Fills the queue.
    let (done, finished) = mpsc::channel();
    let writer = std::thread::spawn({
        let queued = queued.clone();
        move || {
            queued.log(&record("2"));
            done.send(()).unwrap();
        }
    });
    assert!(finished.recv_timeout(Duration::from_millis(50)).is_err(), "there is no room for it");
    gate.open();
    finished.recv_timeout(PATIENCE).unwrap();
    writer.join().unwrap();
    let rules: Vec<String> = (0..3).map(|_| heard.recv_timeout(PATIENCE).unwrap()).collect();
    assert_eq!((rules, queued.lost()), (["0", "1", "2"].map(str::to_owned).to_vec(), 0));
}

#[test]
fn a_logger_that_goes_lets_its_thread_write_what_is_left() {
    let gate = Arc::new(Gate::default());
    let (logger, heard) = gated(&gate);
    let queued = Queued::new(logger, AuditQueue::default());
    for rule in ["0", "1", "2"] {
        queued.log(&record(rule));
    }
    drop(queued);
    gate.open();
    let rules: Vec<String> = heard.iter().collect(); // Ends with the thread.
    assert_eq!(rules, ["0", "1", "2"]);
}

#[test]
fn what_is_in_the_queue_can_be_waited_for() {
    let gate = Arc::new(Gate::default());
    let (logger, heard) = gated(&gate);
    let queued = Arc::new(Queued::new(logger, AuditQueue::default()));
    queued.log(&record("0"));
    queued.log(&record("1"));
    let flushing = std::thread::spawn({
        let queued = queued.clone();
        move || queued.flush()
    });
    gate.open();
    flushing.join().unwrap();
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), ["0", "1"]);
}

#[test]
fn a_logger_that_panics_is_told_of_the_next_decision() {
    struct Panicking(Sender<String>);
    impl AuditLogger for Panicking {
        fn log(&self, record: &AuditRecord) {
            assert_ne!(record.matched_rule, "bad");
            self.0.send(record.matched_rule.clone()).unwrap();
        }
    }
    let (sender, heard) = mpsc::channel();
    let queued = Queued::new(Panicking(sender), AuditQueue::default());
    queued.log(&record("bad"));
    queued.log(&record("good"));
    assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), "good");
}

// === loggers of the application ===

#[test]
fn s50_all_loggers_of_a_decision_are_told() {
    let (factory, heard) = collecting();
    let chain = ChainLoggers::new(Arc::new(auditor(factory)));
    chain.tell(&decision(&[own("a"), own("b")], Some("admin"), true));
    chain.tell(&decision(&[own("b")], None, false));
    let heard: Vec<String> = heard.try_iter().collect();
    assert_eq!(
        heard,
        [
            "built a",
            "a: /s/m spiffe://a/b authz admin true",
            "built b",
            "b: /s/m spiffe://a/b authz admin true",
            "b: /s/m spiffe://a/b authz  false"
        ]
    );
}

#[test]
fn loggers_with_equal_configs_are_one_as_long_as_somebody_has_them() {
    let (factory, heard) = collecting();
    let auditor = Arc::new(auditor(factory));
    let tell = |chain: &ChainLoggers| chain.tell(&decision(&[own("a")], None, true));
    let built = || heard.try_iter().filter(|line| line.starts_with("built")).count();
    let [one, two] = [(); 2].map(|()| ChainLoggers::new(auditor.clone()));
    tell(&one);
    tell(&two);
    tell(&one);
    assert_eq!(built(), 1);
    drop(one);
    tell(&two);
    assert_eq!(built(), 0);
    drop(two);
    tell(&ChainLoggers::new(auditor.clone()));
    assert_eq!(built(), 1, "nobody had it any more");
}

#[test]
fn a_logger_that_panics_fails_no_rpc() {
    struct Panicking;
    impl AuditLogger for Panicking {
        fn log(&self, _: &AuditRecord) {
            panic!("no");
        }
    }
    struct Factory;
    impl AuditLoggerFactory for Factory {
        fn check(&self, config: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
            panic!("at {config}");
        }
        fn build(&self, config: &str) -> Arc<dyn AuditLogger> {
            assert_ne!(config, "unbuildable");
            Arc::new(Panicking)
        }
    }
    let chain = ChainLoggers::new(Arc::new(auditor(Arc::new(Factory))));
    chain.tell(&decision(&[own("a"), own("unbuildable")], None, true));
    let kinds = announced(Arc::new(Factory));
    assert_eq!(kinds.get("mine").unwrap().check("{}"), Err("it panicked: at {}".to_owned()));
}

#[test]
fn s50_the_application_says_which_configs_are_right() {
    let (factory, _heard) = collecting();
    let kinds = announced(factory);
    assert!(kinds.get("other").is_none());
    let mine = kinds.get("mine").unwrap();
    assert_eq!(mine.check("{}"), Ok(()));
    assert_eq!(mine.check("bad"), Err("bad is not good".to_owned()));
}

// === helpers ===

/// Long enough for a thread to be run on any machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn record(rule: &str) -> AuditRecord {
    AuditRecord {
        time: SystemTime::UNIX_EPOCH + Duration::new(1_794_963_723, 4),
        rpc_method: "/pkg.Service/Foo".into(),
        principal: "spiffe://foo/user1".into(),
        policy_name: "authz".into(),
        matched_rule: rule.into(),
        authorized: true,
    }
}

fn own(config: &str) -> AuditLoggerConfig {
    AuditLoggerConfig::Application { name: "mine".into(), config: config.into() }
}

fn decision<'a>(loggers: &'a [AuditLoggerConfig], policy: Option<&'a str>, allowed: bool) -> Decision<'a> {
    let verdict = Verdict { allowed, policy };
    Decision { path: "/s/m", principal: "spiffe://a/b", filter: "authz", verdict, loggers }
}

fn auditor(factory: Arc<dyn AuditLoggerFactory>) -> Auditor {
    let mut own = OwnLoggers::default();
    own.insert("mine".into(), factory);
    Auditor::new(own, AuditQueue::default())
}

fn announced(factory: Arc<dyn AuditLoggerFactory>) -> AuditLoggerKinds {
    let mut own = OwnLoggers::default();
    own.insert("mine".into(), factory);
    let servers = r#"{"xds_servers": [{"server_uri": "a:1", "channel_creds": [{"type": "insecure"}]}]}"#;
    own.announce(Arc::new(Bootstrap::parse(servers, Guards::default()).unwrap())).audit_loggers.clone()
}

/// Loggers that tell what they hear, and that they were made.
fn collecting() -> (Arc<dyn AuditLoggerFactory>, Receiver<String>) {
    struct Factory(Sender<String>);
    struct Logger(String, Sender<String>);
    impl AuditLoggerFactory for Factory {
        fn check(&self, config: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
            if config == "bad" { Err("bad is not good".into()) } else { Ok(()) }
        }
        fn build(&self, config: &str) -> Arc<dyn AuditLogger> {
            self.0.send(format!("built {config}")).unwrap();
            Arc::new(Logger(config.to_owned(), self.0.clone()))
        }
    }
    impl AuditLogger for Logger {
        fn log(&self, record: &AuditRecord) {
            let AuditRecord { rpc_method, principal, policy_name, matched_rule, authorized, .. } = record;
            let said = format!("{}: {rpc_method} {principal} {policy_name} {matched_rule} {authorized}", self.0);
            self.1.send(said).unwrap();
        }
    }
    let (sender, heard) = mpsc::channel();
    (Arc::new(Factory(sender)), heard)
}

/// A logger that gets stuck until its gate is open.
fn gated(gate: &Arc<Gate>) -> (impl AuditLogger, Receiver<String>) {
    struct Gated(Arc<Gate>, Sender<String>);
    impl AuditLogger for Gated {
        fn log(&self, record: &AuditRecord) {
            self.0.pass();
            // Whoever listens may have heard enough.
            let _ = self.1.send(record.matched_rule.clone());
        }
    }
    let (sender, heard) = mpsc::channel();
    (Gated(gate.clone(), sender), heard)
}

#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_open: bool,
    callers: u32,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.lock();
        state.callers += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.is_open).unwrap());
    }

    fn await_caller(&self) {
        drop(self.changed.wait_while(self.lock(), |state| state.callers == 0).unwrap());
    }

    fn open(&self) {
        self.lock().is_open = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap()
    }
}
