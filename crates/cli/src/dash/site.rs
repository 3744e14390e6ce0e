//! Serves the pages: to whom, in which form, and what changes on them while somebody looks.

use std::{collections::BTreeMap, convert::Infallible, net::IpAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    middleware::{self, Next},
    response::{Html, IntoResponse, Redirect, Response},
    routing::get,
};
use maud::Markup;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_stream::Stream;

use super::{
    Settings,
    pages::{self, Fragment, View},
    watch::Look,
};
use crate::{check, explain, failure::Failure, source::Source};

/// What all requests share.
pub(super) struct Site {
    settings: Settings,
    looks: watch::Receiver<Arc<Look>>,
}

type Shared = State<Arc<Site>>;
type Params = BTreeMap<String, String>;

impl Site {
    pub(super) fn new(settings: Settings, looks: watch::Receiver<Arc<Look>>) -> Self {
        Self { settings, looks }
    }

    pub(super) fn router(self) -> Router {
        let site = Arc::new(self);
        Router::new()
            .route("/", get(live))
            .route("/process", get(live))
            .route("/timeline", get(live))
            .route("/explain", get(explain_page))
            .route("/check", get(check_page))
            .route("/events", get(events))
            .route("/style.css", get(async || file("text/css; charset=utf-8", include_str!("style.css"))))
            .route("/script.js", get(async || file("text/javascript; charset=utf-8", include_str!("script.js"))))
            .route("/icon.svg", get(async || file("image/svg+xml", include_str!("icon.svg"))))
            .fallback(nothing_here)
            .layer(middleware::from_fn_with_state(site.clone(), guard))
            .with_state(site)
    }

    fn look(&self) -> Arc<Look> {
        self.looks.borrow().clone()
    }

    /// The process with this name. Only those that were named when this was started are ever asked.
    fn source(&self, name: &str) -> Option<&Source> {
        self.settings.sources.iter().find(|source| source.to_string() == name)
    }
}

// === who may ask ===

/// Lets nobody in who comes by another name (OP-22), or without the token, and forbids pages to load anything from elsewhere.
async fn guard(State(site): Shared, request: Request, next: Next) -> Response {
    let mut response = match admit(&site.settings, request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => *refusal,
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn admit(settings: &Settings, uri: &Uri, headers: &HeaderMap) -> Result<(), Box<Response>> {
    let refuse = |status: StatusCode, why: &str| Box::new((status, format!("{why}\n")).into_response());
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !is_own_name(host, &settings.hosts) {
        return Err(refuse(StatusCode::MISDIRECTED_REQUEST, "this name is not served here; --host allows it"));
    }
    let Some(token) = &settings.token else { return Ok(()) };
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut cookies =
        cookies.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| cookie.trim().strip_prefix(COOKIE));
    if bearer.is_some_and(|given| is_same(given, token)) || cookies.any(|given| is_same(given, token)) {
        return Ok(());
    }
    match params(uri).get("token") {
        // From now on the browser knows it, and it is not in the address any more.
        Some(given) if is_same(given, token) => {
            let cookie = format!("{COOKIE}{token}; Path=/; HttpOnly; SameSite=Strict");
            Err(Box::new(([(header::SET_COOKIE, cookie)], Redirect::to(uri.path())).into_response()))
        }
        _ => Err(refuse(
            StatusCode::UNAUTHORIZED,
            "a token is asked for: open /?token=TOKEN once, or send it as a bearer",
        )),
    }
}

/// Whether a `Host` is an address, `localhost` or a name that was allowed. A page of another site can make its name lead here,
/// but then the browser says that name.
fn is_own_name(host: &str, allowed: &[String]) -> bool {
    let without_port = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = without_port.trim_start_matches('[').trim_end_matches(']');
    let name = bare.trim_end_matches('.');
    bare.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
}

/// In the same time wherever they differ.
fn is_same(given: &str, token: &str) -> bool {
    let pairs = given.bytes().zip(token.bytes());
    given.len() == token.len() && pairs.fold(0, |sum, (one, other)| sum | (one ^ other)) == 0
}

// === pages ===

/// A page that follows what happens.
async fn live(State(site): Shared, uri: Uri) -> Response {
    let params = params(&uri);
    match View::of(uri.path(), &params) {
        Some(view) => {
            let look = site.look();
            match pages::fragments(&view, &look) {
                Some(fragments) => answer(&params, || pages::live(&view, &fragments), || pages::json(&view, &look)),
                None => nothing_here().await,
            }
        }
        None => nothing_here().await,
    }
}

async fn explain_page(State(site): Shared, uri: Uri) -> Response {
    let params = params(&uri);
    let form = pages::ExplainForm::of(&params);
    let outcome = match (form.is_filled(), site.source(&form.at)) {
        (false, _) => None,
        (true, None) => Some(Err("no such process".to_owned())),
        (true, Some(source)) => {
            let explained =
                explain::of_source(source, &form.target, &form.method, &form.headers, site.settings.timeout).await;
            Some(explained.map_err(|failure| failure.what().to_owned()))
        }
    };
    let json = || match &outcome {
        Some(Ok(explained)) => explained.json.clone(),
        Some(Err(error)) => json!({ "error": error }),
        None => json!({ "error": "at, target and method are needed" }),
    };
    answer(&params, || pages::explain(&form, &site.look(), outcome.as_ref()), json)
}

async fn check_page(State(site): Shared, uri: Uri) -> Response {
    let params = params(&uri);
    let at = params.get("at").cloned().unwrap_or_default();
    let outcome = match (at.is_empty(), site.source(&at)) {
        (true, _) => None,
        (false, None) => Some(Err("no such process".to_owned())),
        (false, Some(source)) => {
            Some(check::of_source(source).await.map_err(|failure: Failure| failure.what().to_owned()))
        }
    };
    let json = || match &outcome {
        Some(Ok(findings)) => findings.iter().map(mainstay_check::json).collect(),
        Some(Err(error)) => json!({ "error": error }),
        None => json!({ "error": "at is needed" }),
    };
    answer(&params, || pages::check(&at, &site.look(), outcome.as_ref()), json)
}

fn answer(params: &Params, page: impl FnOnce() -> Markup, json: impl FnOnce() -> Value) -> Response {
    match params.get("format").map(String::as_str) {
        Some("json") => ([(header::CONTENT_TYPE, "application/json")], json().to_string()).into_response(),
        _ => Html(page().into_string()).into_response(),
    }
}

/// What stands behind the question mark; of what is there twice, the last.
fn params(uri: &Uri) -> Params {
    let text = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (text(name), text(value)))
        .collect()
}

async fn nothing_here() -> Response {
    (StatusCode::NOT_FOUND, Html(pages::nothing_here().into_string())).into_response()
}

fn file(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

// === changes ===

/// What changes on a page, as server-sent events with objects of JSON: the ids of elements, and what is to be in their place.
async fn events(State(site): Shared, uri: Uri, headers: HeaderMap) -> Response {
    let asked = params(&uri);
    let page: Uri = asked.get("page").and_then(|page| page.parse().ok()).unwrap_or_default();
    // A browser that comes back has changed the page since it was loaded.
    let is_new = !headers.contains_key("last-event-id");
    let loaded = asked.get("shown").filter(|_| is_new).and_then(|shown| shown.parse().ok());
    match View::of(page.path(), &params(&page)) {
        Some(view) => {
            let changes = Body::from_stream(changes(view, site.looks.clone(), loaded));
            ([(header::CONTENT_TYPE, "text/event-stream")], changes).into_response()
        }
        None => nothing_here().await,
    }
}

/// First everything, unless it is what was on the page when it was loaded; then what differs.
fn changes(
    view: View,
    looks: watch::Receiver<Arc<Look>>,
    loaded: Option<u64>,
) -> impl Stream<Item = Result<String, Infallible>> {
    let state = (view, looks, loaded, BTreeMap::<String, String>::new());
    futures_util::stream::unfold(state, |(view, mut looks, mut loaded, mut shown)| async move {
        loop {
            let look = looks.borrow_and_update().clone();
            let mut changed = BTreeMap::new();
            let fragments = pages::fragments(&view, &look).unwrap_or_default();
            let is_there = loaded.take() == Some(pages::digest(&fragments));
            for Fragment { id, html } in fragments {
                let html = html.into_string();
                if shown.get(&id) != Some(&html) {
                    changed.insert(id.clone(), html.clone());
                    shown.insert(id, html);
                }
            }
            if !changed.is_empty() && !is_there {
                // JSON has no line breaks of its own, which would end the event.
                return Some((Ok(format!("id: 1\ndata: {}\n\n", json!(changed))), (view, looks, loaded, shown)));
            }
            // Several changes in a short time are one for people.
            tokio::time::sleep(CALM).await;
            match tokio::time::timeout(SILENCE, looks.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                // A comment, by which a browser that has left is noticed.
                Err(_) => return Some((Ok(":\n\n".to_owned()), (view, looks, loaded, shown))),
            }
        }
    })
}

const COOKIE: &str = "mainstay_token=";
const CALM: Duration = Duration::from_millis(100);
const SILENCE: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_somebody_else_may_have_chosen_are_refused() {
        let allowed = ["board.test".to_owned()];
        for host in
            ["127.0.0.1:9911", "[::1]:9911", "localhost", "LOCALHOST:1", "10.0.0.1", "board.test:80", "board.test."]
        {
            assert!(is_own_name(host, &allowed), "OP-22: {host}");
        }
        for host in
            ["", "evil.test:9911", "127.0.0.1.evil.test", "localhost.evil.test", "board.test.evil.test", ":9911"]
        {
            assert!(!is_own_name(host, &allowed), "OP-22: {host}");
        }
    }

    #[test]
    fn questions_are_read_as_forms_send_them() {
        let read = params(&"/explain?at=127.0.0.1:1&headers=a%3A+b%0D%0Ac:d&empty=&at=2&".parse().unwrap());
        let expected = [("at", "2"), ("empty", ""), ("headers", "a: b\r\nc:d")];
        assert_eq!(read, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn tokens_are_the_same_or_not() {
        assert!(is_same("abc", "abc"));
        assert!(!is_same("abd", "abc") && !is_same("ab", "abc") && !is_same("", "abc"));
    }
}
