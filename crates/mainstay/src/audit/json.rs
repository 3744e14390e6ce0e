//! Records as lines of JSON.

use std::fmt;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::{AuditLogger, AuditRecord};

/// Writes each record as one line of JSON with the fields of gRFC A59. Blocks as long as the writer does: see
/// [`Queued`](super::Queued).
///
/// ```json
/// {"grpc_audit_log":{"timestamp":"2026-08-21T16:27:56.123456789Z","rpc_method":"/pkg.Service/Foo","principal":"spiffe://foo/user1","policy_name":"authz","matched_rule":"admin_access","authorized":true}}
/// ```
pub struct JsonLines<W> {
    writer: Mutex<W>,
}

impl<W: Write + Send + 'static> JsonLines<W> {
    /// Returns a logger that writes to `writer`, a whole line at a time.
    pub fn new(writer: W) -> Self {
        Self { writer: Mutex::new(writer) }
    }
}

impl<W: Write + Send + 'static> AuditLogger for JsonLines<W> {
    fn log(&self, record: &AuditRecord) {
        let line = line(record);
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = writer.write_all(line.as_bytes()).and_then(|()| writer.flush()) {
            tracing::error!(%error, "an audit record cannot be written");
        }
    }
}

impl<W> fmt::Debug for JsonLines<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JsonLines").finish_non_exhaustive()
    }
}

/// With its end.
pub(super) fn line(record: &AuditRecord) -> String {
    let AuditRecord { time, rpc_method, principal, policy_name, matched_rule, authorized } = record;
    let fields = Fields {
        timestamp: &timestamp(*time),
        rpc_method,
        principal,
        policy_name,
        matched_rule,
        authorized: *authorized,
    };
    // Texts and a boolean cannot fail to be written.
    let mut line = serde_json::to_string(&Line { grpc_audit_log: fields }).unwrap_or_default();
    line.push('\n');
    line
}

#[derive(Serialize)]
struct Line<'a> {
    grpc_audit_log: Fields<'a>,
}

#[derive(Serialize)]
struct Fields<'a> {
    timestamp: &'a str,
    rpc_method: &'a str,
    principal: &'a str,
    policy_name: &'a str,
    matched_rule: &'a str,
    authorized: bool,
}

/// As RFC 3339 writes it, in UTC, with all nanoseconds. A time before 1970 is taken for 1970.
pub(super) fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, seconds) = (since.as_secs() / DAY, since.as_secs() % DAY);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:09}Z", since.subsec_nanos())
}

/// The date so many days after the first of January 1970.
fn date(mut days: u64) -> (u64, u64, u64) {
    // In 400 years there are always as many days, so that at most 400 years are counted one by one.
    let mut year = 1970 + days / DAYS_OF_400_YEARS * 400;
    days %= DAYS_OF_400_YEARS;
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days_of = |year| if is_leap(year) { 366 } else { 365 };
    while days >= days_of(year) {
        days -= days_of(year);
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for days_of_month in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < days_of_month {
            break;
        }
        days -= days_of_month;
        month += 1;
    }
    (year, month, days + 1)
}

const DAY: u64 = 86_400;
const DAYS_OF_400_YEARS: u64 = 146_097;
