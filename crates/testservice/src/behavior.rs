//! What a single call shall suffer, as its `rpc-behavior` metadata asks (I-20).

use std::{future, str::FromStr, time::Duration};

use tonic::{Code, Status, metadata::MetadataMap};

/// The request metadata key that asks for a behaviour. Values are comma lists of
/// `sleep-N`, `keep-open`, `error-code-N` and `succeed-on-retry-attempt-N`, each optionally after `hostname=H `.
pub const BEHAVIOR_KEY: &str = "rpc-behavior";

/// The request metadata key in which a retrying client tells how often it has tried before.
pub const ATTEMPTS_KEY: &str = "grpc-previous-rpc-attempts";

/// One thing to do before the call is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Behavior {
    Sleep(Duration),
    KeepOpen,
    End(Code),
    SucceedOnAttempt(u32),
}

/// Does what `metadata` asks of the server on `hostname`. `Ok` means that the call is now to be answered normally.
pub(crate) async fn apply(metadata: &MetadataMap, hostname: &str) -> Result<(), Status> {
    for behavior in parse(metadata, hostname)? {
        match behavior {
            Behavior::Sleep(time) => tokio::time::sleep(time).await,
            Behavior::KeepOpen => future::pending().await,
            Behavior::End(Code::Ok) => return Ok(()),
            Behavior::End(code) => {
                return Err(Status::new(code, format!("{hostname}: {BEHAVIOR_KEY} asked for this status")));
            }
            Behavior::SucceedOnAttempt(wanted) if attempts(metadata) == wanted => return Ok(()),
            Behavior::SucceedOnAttempt(_) => {}
        }
    }
    Ok(())
}

/// The behaviours that concern `hostname`, over all values in order.
fn parse(metadata: &MetadataMap, hostname: &str) -> Result<Vec<Behavior>, Status> {
    let mut behaviors = Vec::new();
    for value in metadata.get_all(BEHAVIOR_KEY) {
        let value = value.to_str().map_err(|_| invalid("a value that is not ASCII"))?;
        for item in value.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (host, rest) = match item.strip_prefix("hostname=") {
                Some(limited) => limited.split_once(' ').ok_or_else(|| invalid(item))?,
                None => (hostname, item),
            };
            // Parsed before it is skipped: a typing error must not hide on the other hosts.
            let behavior = parse_item(rest.trim()).ok_or_else(|| invalid(item))?;
            if host == hostname {
                behaviors.push(behavior);
            }
        }
    }
    Ok(behaviors)
}

fn parse_item(item: &str) -> Option<Behavior> {
    if item == "keep-open" {
        Some(Behavior::KeepOpen)
    } else if let Some(seconds) = number_after(item, "sleep-") {
        Some(Behavior::Sleep(Duration::from_secs(u32::into(seconds))))
    } else if let Some(code) = number_after::<i32>(item, "error-code-") {
        (0..=16).contains(&code).then(|| Behavior::End(Code::from_i32(code)))
    } else {
        number_after(item, "succeed-on-retry-attempt-").map(Behavior::SucceedOnAttempt)
    }
}

fn number_after<N: FromStr>(item: &str, prefix: &str) -> Option<N> {
    item.strip_prefix(prefix)?.parse().ok()
}

/// How often the client has tried this call before; a client that does not say so has not.
fn attempts(metadata: &MetadataMap) -> u32 {
    metadata.get(ATTEMPTS_KEY).and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0)
}

fn invalid(item: &str) -> Status {
    Status::invalid_argument(format!(
        "{BEHAVIOR_KEY}: {item:?}: expected sleep-N, keep-open, error-code-N or succeed-on-retry-attempt-N, \
         optionally after \"hostname=H \""
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_all_values_keep_their_order() {
        // I-20
        let metadata = metadata(&["sleep-2, error-code-14", "keep-open,succeed-on-retry-attempt-3"]);
        assert_eq!(
            parse(&metadata, "a").unwrap(),
            [
                Behavior::Sleep(Duration::from_secs(2)),
                Behavior::End(Code::Unavailable),
                Behavior::KeepOpen,
                Behavior::SucceedOnAttempt(3)
            ]
        );
    }

    #[test]
    fn a_hostname_limits_its_item_only() {
        // I-20
        let metadata = metadata(&["hostname=b error-code-2,hostname=a sleep-1,keep-open"]);
        assert_eq!(parse(&metadata, "a").unwrap(), [Behavior::Sleep(Duration::from_secs(1)), Behavior::KeepOpen]);
        assert_eq!(parse(&metadata, "b").unwrap(), [Behavior::End(Code::Unknown), Behavior::KeepOpen]);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for item in ["sleep-", "sleep--1", "error-code-17", "error-code-x", "explode", "hostname=a", "hostname=b nap"] {
            let status = parse(&metadata(&[item]), "a").unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{item}");
            assert!(status.message().contains(item), "{item}: {}", status.message());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sleeping_comes_before_the_error() {
        // I-20
        let begin = tokio::time::Instant::now();
        let status = apply(&metadata(&["sleep-4,error-code-8"]), "a").await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(begin.elapsed(), Duration::from_secs(4));
    }

    #[tokio::test]
    async fn the_wanted_attempt_succeeds_and_the_others_go_on() {
        // I-20
        let mut metadata = metadata(&["succeed-on-retry-attempt-2,error-code-14"]);
        assert_eq!(apply(&metadata, "a").await.unwrap_err().code(), Code::Unavailable);
        metadata.insert(ATTEMPTS_KEY, "1".parse().unwrap());
        assert_eq!(apply(&metadata, "a").await.unwrap_err().code(), Code::Unavailable);
        metadata.insert(ATTEMPTS_KEY, "2".parse().unwrap());
        assert!(apply(&metadata, "a").await.is_ok());
    }

    #[tokio::test]
    async fn error_code_zero_and_no_behavior_answer_normally() {
        assert!(apply(&metadata(&["error-code-0,error-code-14"]), "a").await.is_ok());
        assert!(apply(&metadata(&[""]), "a").await.is_ok());
        assert!(apply(&metadata(&[]), "a").await.is_ok());
    }

    fn metadata(values: &[&str]) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        for value in values {
            metadata.append(BEHAVIOR_KEY, value.parse().unwrap());
        }
        metadata
    }
}
