//! Call credentials of A97: a token in a file, which is kept until shortly before it expires.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::HeaderValue;
use mainstay_xds::Backoff;
use mainstay_xds::bootstrap::{CallCreds, ChannelCreds, ServerConfig};
use serde::Deserialize;
use tokio::time::Instant;

use crate::random::Random;

/// The tokens that a channel shows to xDS servers. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Tokens(Arc<Mutex<HashMap<PathBuf, Arc<TokenFile>>>>);

/// A file and what was last read from it.
struct TokenFile {
    path: PathBuf,
    cache: Mutex<Cache>,
    /// Held by whoever reads the file.
    reading: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct Cache {
    token: Option<Token>,
    failure: Option<Failure>,
}

struct Token {
    /// Of the `authorization` header.
    value: HeaderValue,
    /// Seconds since 1970.
    expires: u64,
}

/// The last attempt to read the file came to nothing.
struct Failure {
    cause: String,
    /// How many in a row.
    count: u32,
    /// The file is not read again before.
    until: Instant,
}

/// What to do for a stream that needs the token.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Use(HeaderValue),
    /// Use it, and read the file in the background.
    UseAndRead(HeaderValue),
    Read,
    Fail(String),
}

// === impl Tokens ===

impl Tokens {
    /// The `authorization` header for streams to `server`, if it wants one.
    pub(super) async fn bearer(&self, server: &ServerConfig) -> Result<Option<HeaderValue>, String> {
        let Some(CallCreds::JwtTokenFile(path)) = server.call_creds.first() else { return Ok(None) };
        if server.channel_creds == ChannelCreds::Insecure {
            // S-98: a bearer token never travels in the clear.
            return Err(format!("{}: call credentials need a secure connection", server.server_uri));
        }
        self.file(path).token().await.map(Some)
    }

    fn file(&self, path: &Path) -> Arc<TokenFile> {
        let mut files = lock(&self.0);
        let new = || Arc::new(TokenFile { path: path.to_owned(), cache: Mutex::default(), reading: Arc::default() });
        files.entry(path.to_owned()).or_insert_with(new).clone()
    }
}

// === impl TokenFile ===

impl TokenFile {
    async fn token(self: &Arc<Self>) -> Result<HeaderValue, String> {
        loop {
            match self.next() {
                Next::Use(value) => return Ok(value),
                Next::Fail(cause) => return Err(cause),
                Next::UseAndRead(value) => {
                    if let Ok(turn) = self.reading.clone().try_lock_owned() {
                        let file = self.clone();
                        tokio::spawn(async move {
                            file.read().await;
                            drop(turn);
                        });
                    }
                    return Ok(value);
                }
                // S-96: streams wait for the read.
                Next::Read => {
                    let _turn = self.reading.lock().await;
                    // Whoever had the turn before may have found one.
                    if self.next() == Next::Read {
                        self.read().await;
                    }
                }
            }
        }
    }

    fn next(&self) -> Next {
        lock(&self.cache).next(unix_time(), Instant::now())
    }

    async fn read(&self) {
        let text = tokio::fs::read_to_string(&self.path).await;
        let token = text.map_err(|error| error.to_string()).and_then(|text| Token::parse(text.trim(), unix_time()));
        let token = token.map_err(|cause| format!("{}: {cause}", self.path.display()));
        lock(&self.cache).take_in(token, Instant::now());
    }
}

// === impl Cache ===

impl Cache {
    fn next(&self, unix_time: u64, now: Instant) -> Next {
        let may_read = self.failure.as_ref().is_none_or(|failure| failure.until <= now);
        match (&self.token, &self.failure) {
            (Some(token), _) if token.is_usable(unix_time) => {
                let value = token.value.clone();
                let wears_out = !token.is_usable(unix_time + REFRESH);
                if wears_out && may_read { Next::UseAndRead(value) } else { Next::Use(value) }
            }
            // S-97: meanwhile the last failure stands.
            (_, Some(failure)) if !may_read => Next::Fail(failure.cause.clone()),
            _ => Next::Read,
        }
    }

    fn take_in(&mut self, read: Result<Token, String>, now: Instant) {
        match read {
            Ok(token) => (self.token, self.failure) = (Some(token), None),
            // A token that is still good stays.
            Err(cause) => {
                let count = self.failure.as_ref().map_or(0, |failure| failure.count);
                let until = now + Backoff::default().delay(count, &mut Random);
                self.failure = Some(Failure { cause, count: count.saturating_add(1), until });
            }
        }
    }
}

// === impl Token ===

impl Token {
    /// A JSON Web Token (RFC 7519): three parts, of which the second says when it expires. Only the server can check
    /// the rest.
    fn parse(text: &str, unix_time: u64) -> Result<Self, String> {
        let parts: Vec<_> = text.split('.').collect();
        let [_, claims, _] = parts[..] else { return Err("not a JSON Web Token: expected three parts".to_owned()) };
        let unreadable = |cause: &dyn std::fmt::Display| format!("the claims of the token cannot be read: {cause}");
        let claims = BASE64URL.decode(claims).map_err(|error| unreadable(&error))?;
        let claims: Claims = serde_json::from_slice(&claims).map_err(|error| unreadable(&error))?;
        let mut value = HeaderValue::try_from(format!("Bearer {text}"))
            .map_err(|_| "the token does not fit a header".to_owned())?;
        value.set_sensitive(true);
        // A date is a JSON number, perhaps with a fraction. `as` saturates.
        let token = Self { value, expires: claims.exp as u64 };
        if token.is_usable(unix_time) { Ok(token) } else { Err("the token has expired".to_owned()) }
    }

    /// S-95: until 30 s before it expires.
    fn is_usable(&self, unix_time: u64) -> bool {
        unix_time + LAST_SECONDS < self.expires
    }
}

#[derive(Deserialize)]
struct Claims {
    exp: f64,
}

fn unix_time() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const BASE64URL: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// So many seconds before it expires a token is not shown any more: it must still be good when it arrives.
const LAST_SECONDS: u64 = 30;

/// So many seconds before that the file is read again.
const REFRESH: u64 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_used_until_shortly_before_it_expires_and_read_again_before_that() {
        // S-95.
        let now = Instant::now();
        let mut cache = Cache::default();
        assert_eq!(cache.next(1000, now), Next::Read);
        cache.take_in(Token::parse(&token(r#"{"exp": 2000}"#), 1000), now);
        let value = HeaderValue::try_from(format!("Bearer {}", token(r#"{"exp": 2000}"#))).unwrap();
        assert_eq!(cache.next(1909, now), Next::Use(value.clone()));
        assert_eq!(cache.next(1910, now), Next::UseAndRead(value.clone()));
        assert_eq!(cache.next(1969, now), Next::UseAndRead(value));
        assert_eq!(cache.next(1970, now), Next::Read);
    }

    #[test]
    fn after_a_failure_the_file_is_left_alone_for_a_while_and_a_good_token_stays_in_use() {
        // S-97.
        let now = Instant::now();
        let mut cache = Cache::default();
        cache.take_in(Err("gone".to_owned()), now);
        assert_eq!(cache.next(0, now), Next::Fail("gone".to_owned()));
        assert_eq!(cache.next(0, now + Duration::from_secs(2)), Next::Read, "the first pause is about a second");

        cache.take_in(Token::parse(&token(r#"{"exp": 2000}"#), 1000), now);
        cache.take_in(Err("gone".to_owned()), now);
        assert!(matches!(cache.next(1950, now), Next::Use(_)));
        assert!(matches!(cache.next(1950, now + Duration::from_secs(2)), Next::UseAndRead(_)));
        assert_eq!(cache.next(1970, now), Next::Fail("gone".to_owned()));
    }

    #[test]
    fn pauses_between_attempts_grow() {
        // P-19.
        let now = Instant::now();
        let mut cache = Cache::default();
        for _ in 0..8 {
            cache.take_in(Err("gone".to_owned()), now);
        }
        assert_eq!(cache.next(0, now + Duration::from_secs(5)), Next::Fail("gone".to_owned()));
    }

    #[test]
    fn what_is_no_token_is_refused_with_the_reason() {
        // S-96.
        for (text, expected) in [
            (String::new(), "not a JSON Web Token: expected three parts"),
            ("secret".to_owned(), "not a JSON Web Token: expected three parts"),
            ("a.b.c.d".to_owned(), "not a JSON Web Token: expected three parts"),
            ("a.*.c".to_owned(), "the claims of the token cannot be read: Invalid symbol"),
            (token("{"), "the claims of the token cannot be read: EOF"),
            (token(r#"{"iat": 1}"#), "the claims of the token cannot be read: missing field `exp`"),
            (token(r#"{"exp": "soon"}"#), "the claims of the token cannot be read: invalid type"),
            (token(r#"{"exp": 1029}"#), "the token has expired"),
            (token(r#"{"exp": -1e300}"#), "the token has expired"),
        ] {
            let error = Token::parse(&text, 1000).map(|_| ()).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        assert!(Token::parse(&token(r#"{"exp": 1e300}"#), 1000).is_ok());
    }

    #[test]
    fn a_token_is_not_shown_in_logs() {
        let token = Token::parse(&token(r#"{"exp": 2000}"#), 1000).map_err(drop).unwrap();
        assert_eq!(format!("{:?}", token.value), "Sensitive");
    }

    fn token(claims: &str) -> String {
        format!("e30.{}.c2lnbmVk", BASE64URL.encode(claims))
    }
}
