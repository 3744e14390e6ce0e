//! What the client's flags mean.

use std::fmt;
use std::time::Duration;

use tonic::Code;

use super::call::Method;
use crate::flags::{FlagError, Flags};

/// What the command line asks for; see [`Settings::from_flags`].
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub(crate) server: String,
    pub(crate) stats_port: u16,
    pub(crate) qps: u32,
    pub(crate) num_channels: usize,
    /// As the control plane says, in plaintext where it says nothing (I-17).
    pub(crate) secure: bool,
    pub(crate) rpc_timeout: Duration,
    /// Ours alone: how often connections are pinged, and whether they are without calls.
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) keep_alive_without_calls: bool,
    pub(crate) methods: Vec<Method>,
    pub(crate) metadata: Vec<(Method, String, String)>,
    pub(crate) expect_status: Code,
    pub(crate) fail_on_failed_rpc: bool,
    pub(crate) print_response: bool,
    pub(crate) request_payload_size: usize,
    pub(crate) response_payload_size: i32,
}

/// Why a command line cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub enum SettingsError {
    /// A value that makes no sense.
    Flag(FlagError),
    /// Values that do not go together.
    Conflict(&'static str),
}

impl Settings {
    /// Reads the arguments after the program's name. Unknown flags are named on standard error and ignored (I-1).
    pub fn from_flags(arguments: impl IntoIterator<Item = String>) -> Result<Self, SettingsError> {
        let mut flags = Flags::parse(arguments);
        // Two names of the same flag; either is enough.
        let fail = flags.switch("fail_on_failed_rpc")? | flags.switch("fail_on_failed_rpcs")?;
        let settings = Self {
            server: flags.text("server", "localhost:8080"),
            stats_port: flags.port("stats_port", 50052)?,
            qps: flags.take("qps", 1, "RPCs per second, 1 to 100000", |value| {
                value.parse().ok().filter(|qps| (1..=100_000).contains(qps))
            })?,
            num_channels: flags.take("num_channels", 1, "a number of channels, 1 to 1000", |value| {
                value.parse().ok().filter(|count| (1..=1000).contains(count))
            })?,
            secure: flags.switch("secure_mode")?,
            rpc_timeout: flags.take("rpc_timeout_sec", Duration::from_secs(20), "seconds, 1 or more", |value| {
                value
                    .parse()
                    .ok()
                    .filter(|&seconds| seconds > 0)
                    .map(|seconds: u32| Duration::from_secs(seconds.into()))
            })?,
            keep_alive: flags.take("keep_alive_ms", None, "milliseconds, 1 or more", |value| {
                value.parse().ok().filter(|&millis| millis > 0).map(|millis| Some(Duration::from_millis(millis)))
            })?,
            keep_alive_without_calls: flags.switch("keep_alive_without_calls")?,
            methods: flags.take("rpc", vec![Method::Unary], "a comma list of UnaryCall, EmptyCall", |value| {
                value.split(',').map(|name| Method::from_name(name.trim())).collect()
            })?,
            metadata: flags.take("metadata", Vec::new(), "a comma list of Method:key:value", |value| {
                value.split(',').filter(|item| !item.trim().is_empty()).map(metadata_item).collect()
            })?,
            expect_status: flags.take("expect_status", Code::Ok, "the name or number of a gRPC status", code)?,
            fail_on_failed_rpc: fail,
            print_response: flags.switch("print_response")?,
            request_payload_size: flags.take("request_payload_size", 0, "bytes, at most 16 MiB", |value| {
                value.parse().ok().filter(|&size| size <= 16 << 20)
            })?,
            response_payload_size: flags.take("response_payload_size", 0, "bytes, at most 16 MiB", |value| {
                value.parse().ok().filter(|size| (0..=16 << 20).contains(size))
            })?,
        };
        if flags.switch("enable_csm_observability")? {
            eprintln!("ignored: --enable_csm_observability: CSM labels are not supported yet");
        }
        flags.warn_of_rest();
        Ok(settings)
    }
}

impl From<FlagError> for SettingsError {
    fn from(error: FlagError) -> Self {
        Self::Flag(error)
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(error) => error.fmt(f),
            Self::Conflict(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for SettingsError {}

/// `Method:key:value`; the value may contain colons.
fn metadata_item(item: &str) -> Option<(Method, String, String)> {
    let mut parts = item.trim().splitn(3, ':');
    let method = Method::from_name(parts.next()?)?;
    Some((method, parts.next()?.to_owned(), parts.next()?.to_owned()))
}

fn code(value: &str) -> Option<Code> {
    if let Ok(number) = value.parse() {
        return (0..=16).contains(&number).then(|| Code::from_i32(number));
    }
    // "DEADLINE_EXCEEDED" and "DeadlineExceeded" are the same name.
    let plain = |name: &str| name.replace('_', "").to_ascii_lowercase();
    (0..=16).map(Code::from_i32).find(|code| plain(&format!("{code:?}")) == plain(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_send_unary_calls_once_a_second() {
        // I-32
        let settings = settings(&["--server=xds:///listener_0", "--stats_port=1"]).unwrap();
        assert_eq!(settings.server, "xds:///listener_0");
        assert_eq!((settings.qps, settings.num_channels), (1, 1));
        assert_eq!((settings.rpc_timeout, settings.methods), (Duration::from_secs(20), vec![Method::Unary]));
    }

    #[test]
    fn every_flag_of_the_contract_is_understood() {
        // I-1
        let settings = settings(&[
            "--server=xds:///a",
            "--stats_port=7",
            "--qps=5",
            "--num_channels=2",
            "--rpc_timeout_sec=3",
            "--rpc=EmptyCall,UnaryCall",
            "--metadata=EmptyCall:rpc-behavior:sleep-4,UnaryCall:k:a:b",
            "--expect_status=DEADLINE_EXCEEDED",
            "--fail_on_failed_rpcs=True",
            "--print_response=true",
            "--secure_mode=False",
            "--request_payload_size=10",
            "--response_payload_size=20",
            "--enable-csm-observability=False",
            "--log_rpc_start_and_end=True",
        ])
        .unwrap();
        assert_eq!(settings.methods, [Method::Empty, Method::Unary]);
        assert_eq!(
            settings.metadata,
            [
                (Method::Empty, "rpc-behavior".to_owned(), "sleep-4".to_owned()),
                (Method::Unary, "k".to_owned(), "a:b".to_owned())
            ]
        );
        assert_eq!(settings.expect_status, Code::DeadlineExceeded);
        assert!(settings.fail_on_failed_rpc && settings.print_response);
        assert_eq!((settings.request_payload_size, settings.response_payload_size), (10, 20));
        assert!(!settings.secure);
    }

    #[test]
    fn wrong_values_say_what_was_expected() {
        for (flag, expected) in [
            ("--qps=0", "RPCs per second"),
            ("--rpc=Unary", "UnaryCall, EmptyCall"),
            ("--metadata=EmptyCall:k", "Method:key:value"),
            ("--expect_status=FINE", "name or number of a gRPC status"),
            ("--secure_mode=maybe", "true or false"),
        ] {
            let error = settings(&[flag]).unwrap_err().to_string();
            assert!(error.contains(flag) && error.contains(expected), "{flag}: {error}");
        }
    }

    fn settings(arguments: &[&str]) -> Result<Settings, SettingsError> {
        Settings::from_flags(arguments.iter().map(|&argument| argument.to_owned()))
    }
}
