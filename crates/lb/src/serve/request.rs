//! What a request must be before any rule sees it (SV-27).
//!
//! Rules compare paths and authorities, so there must be one of each, in one form: what a rule does not recognize must
//! not be served by a handler that is less strict.

use http::{HeaderMap, Method, header};

use super::Refusal;

/// What is known of a request when its headers are there.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `:method`.
    pub method: &'a Method,
    /// `:path` without the query, which handlers do not look at either.
    pub path: &'a str,
    /// `:authority`, if there is one.
    pub authority: Option<&'a str>,
    /// All headers that are not pseudo-headers.
    pub headers: &'a HeaderMap,
}

/// What is the same for everybody who looks at a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WellFormed<'a> {
    /// Whom it is for.
    pub authority: &'a str,
    /// `/service/method`.
    pub path: &'a str,
}

impl<'a> Request<'a> {
    /// Checks that the request can be judged.
    ///
    /// # Errors
    /// If it cannot.
    pub fn check(&self) -> Result<WellFormed<'a>, Refusal> {
        if self.method != Method::POST {
            return Err(Refusal::Method);
        }
        let parts = self.path.strip_prefix('/').and_then(|path| path.split_once('/'));
        let is_method =
            |(service, method): (&str, &str)| !service.is_empty() && !method.is_empty() && !method.contains('/');
        if !parts.is_some_and(is_method) {
            return Err(Refusal::Path);
        }
        Ok(WellFormed { authority: self.only_authority()?, path: self.path })
    }

    /// S-48: `host` stands in for an authority that is missing, and does not count beside one.
    fn only_authority(&self) -> Result<&'a str, Refusal> {
        if let Some(authority) = self.authority.filter(|authority| !authority.is_empty()) {
            return Ok(authority);
        }
        let mut hosts = self.headers.get_all(header::HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok()).filter(|host| !host.is_empty());
        match (host, hosts.next()) {
            (_, Some(_)) => Err(Refusal::SeveralAuthorities),
            (Some(host), None) => Ok(host),
            (None, None) => Err(Refusal::NoAuthority),
        }
    }
}
