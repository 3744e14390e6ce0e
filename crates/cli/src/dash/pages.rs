//! The pages, and the parts of them that change.

mod forms;
mod process;

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use maud::{DOCTYPE, Markup, html};
use serde_json::{Value, json};

use super::{
    timeline::Entry,
    watch::Look,
    watched::{Health, Watched},
};

pub(super) use forms::{ExplainForm, check, explain};

/// A page that follows what happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum View {
    Fleet,
    /// One process, by its address.
    Process(String),
    Timeline,
}

/// A part of a page, by the id of its element.
pub(super) struct Fragment {
    pub(super) id: String,
    pub(super) html: Markup,
}

impl View {
    pub(super) fn of(path: &str, params: &BTreeMap<String, String>) -> Option<Self> {
        match path {
            "/" => Some(Self::Fleet),
            "/process" => Some(Self::Process(params.get("at")?.clone())),
            "/timeline" => Some(Self::Timeline),
            _ => None,
        }
    }

    fn title(&self) -> String {
        match self {
            Self::Fleet => "Fleet".to_owned(),
            Self::Process(address) => address.clone(),
            Self::Timeline => "Timeline".to_owned(),
        }
    }
}

/// What is on a page now; none if there is no such page.
pub(super) fn fragments(view: &View, look: &Look) -> Option<Vec<Fragment>> {
    match view {
        View::Fleet => Some(fleet(look)),
        View::Process(address) => {
            let process = find(look, address)?;
            let of_it = look.timeline.iter().filter(|entry| entry.process == *address);
            Some(vec![
                Fragment { id: "process".to_owned(), html: process::process(process) },
                Fragment { id: "timeline".to_owned(), html: timeline(of_it.map(|entry| &**entry), FEW) },
            ])
        }
        View::Timeline => {
            let all = look.timeline.iter().map(|entry| &**entry);
            Some(vec![Fragment { id: "timeline".to_owned(), html: timeline(all, usize::MAX) }])
        }
    }
}

/// The same for programs.
pub(super) fn json(view: &View, look: &Look) -> Value {
    let entries = |address: Option<&str>| -> Vec<&Entry> {
        let wanted = look.timeline.iter().map(|entry| &**entry);
        wanted.filter(|entry| address.is_none_or(|address| entry.process == address)).collect()
    };
    let with_clients = |process: &Watched| {
        let mut value = json!(process);
        value["clients"] =
            json!(process.held.iter().flat_map(|held| &held.clients).map(|client| &client.row).collect::<Vec<_>>());
        value
    };
    match view {
        View::Fleet => json!({
            "processes": look.processes.iter().map(|process| with_clients(process)).collect::<Vec<_>>(),
            "timeline": entries(None),
        }),
        View::Process(address) => {
            let process = find(look, address);
            let held = process.and_then(|process| process.held.as_deref());
            json!({ "process": process, "holds": held, "timeline": entries(Some(address)) })
        }
        View::Timeline => json!({ "timeline": entries(None) }),
    }
}

/// A page that follows what happens.
pub(super) fn live(view: &View, fragments: &[Fragment]) -> Markup {
    let heading = match view {
        View::Fleet | View::Timeline => None,
        View::Process(address) => Some(address),
    };
    page(
        &view.title(),
        Some(digest(fragments)),
        &html! {
            h1 { @match heading { Some(address) => { "Process " code { (address) } }, None => (view.title()) } }
            @match view {
                // Cells are fragments of their own: of a thousand processes only those that change are sent again.
                View::Fleet => {
                    @for fragment in fragments.iter().filter(|fragment| !is_cell(fragment)) { (fragment.html) }
                    ul class="cells" aria-label="all processes" { @for fragment in fragments.iter().filter(|fragment| is_cell(fragment)) { (fragment.html) } }
                }
                View::Process(_) | View::Timeline => { @for fragment in fragments { (fragment.html) } }
            }
        },
    )
}

pub(super) fn nothing_here() -> Markup {
    page(
        "Nothing here",
        None,
        &html! {
            h1 { "Nothing here" }
            p { "There is no such page, or no such process. " a href="/" { "The fleet" } " has all of them." }
        },
    )
}

fn is_cell(fragment: &Fragment) -> bool {
    fragment.id.starts_with(CELL)
}

fn find<'a>(look: &'a Look, address: &str) -> Option<&'a Watched> {
    look.processes.iter().map(|process| &**process).find(|process| process.address == address)
}

/// A short sign of what is shown.
pub(super) fn digest(fragments: &[Fragment]) -> u64 {
    let mut hasher = DefaultHasher::new();
    fragments.iter().for_each(|fragment| (&fragment.id, &fragment.html.0).hash(&mut hasher));
    hasher.finish()
}

/// What is around every page; of one that follows what happens, a sign of what it shows.
fn page(title: &str, shown: Option<u64>, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Mainstay" }
                link rel="icon" href="/icon.svg";
                link rel="stylesheet" href="/style.css";
                @if shown.is_some() { script src="/script.js" defer {} }
            }
            body data-shown=[shown] {
                a class="skip" href="#content" { "Skip to the content" }
                header {
                    strong { "Mainstay" }
                    nav aria-label="pages" {
                        @for (path, name) in [("/", "Fleet"), ("/timeline", "Timeline"), ("/explain", "Explain"), ("/check", "Check")] {
                            a href=(path) aria-current=[(name == title).then_some("page")] { (name) }
                        }
                    }
                    @if shown.is_some() { p id="live" role="status" { "as of loading; reload to see more" } }
                }
                main id="content" { (content) }
                footer { "Read only. Every page is also there with " code { "?format=json" } "." }
            }
        }
    }
}

/// All processes: how many are how, those in trouble, what happened last, and a cell for each.
fn fleet(look: &Look) -> Vec<Fragment> {
    let mut counts: BTreeMap<Health, usize> = BTreeMap::new();
    look.processes.iter().for_each(|process| *counts.entry(process.health).or_default() += 1);
    let summary = html! {
        p id="summary" role="status" {
            @for (health, count) in &counts { span class=(class(*health)) { (count) " " (word(*health)) } " " }
        }
    };
    let troubled: Vec<_> = look.processes.iter().filter(|process| process.health <= Health::Warn).take(MANY).collect();
    let trouble = html! {
        section id="trouble" {
            @if !troubled.is_empty() {
                h2 { "In trouble" }
                div class="wide" { table {
                    thead { tr { th scope="col" { "Process" } th scope="col" { "State" } th scope="col" { "Served by" } th scope="col" { "Why" } } }
                    tbody { @for process in troubled { tr {
                        th scope="row" { a href=(link(&process.address)) { (process.address) } }
                        td { (badge(process.health, &process.words)) }
                        td { (served_by(process)) }
                        td { (process.trouble().unwrap_or_default()) }
                    } } }
                } }
            }
        }
    };
    let entries = look.timeline.iter().map(|entry| &**entry);
    let mut fragments = vec![
        Fragment { id: "summary".to_owned(), html: summary },
        Fragment { id: "trouble".to_owned(), html: trouble },
        Fragment { id: "timeline".to_owned(), html: timeline(entries, FEW) },
    ];
    fragments.extend(look.processes.iter().enumerate().map(|(place, process)| {
        let id = format!("{CELL}{place}");
        let targets =
            process.held.iter().flat_map(|held| &held.clients).filter_map(|client| client.row.target.as_deref());
        let targets = targets.take(3).collect::<Vec<_>>().join(", ");
        let html = html! {
            li id=(id) class=(class(process.health)) { a href=(link(&process.address)) {
                b { (process.words) } span { (process.address) } @if !targets.is_empty() { span { (targets) } }
            } }
        };
        Fragment { id, html }
    }));
    fragments
}

/// The xDS servers that the resources in use are from.
fn served_by(process: &Watched) -> String {
    let clients = process.held.iter().flat_map(|held| &held.clients);
    let mut servers: Vec<&str> = clients.filter_map(|client| client.row.in_charge.as_deref()).collect();
    servers.sort_unstable();
    servers.dedup();
    servers.join(", ")
}

fn timeline<'a>(entries: impl Iterator<Item = &'a Entry>, shown: usize) -> Markup {
    let entries: Vec<&Entry> = entries.take(shown).collect();
    html! {
        section id="timeline" {
            h2 { "What happened" }
            @if entries.is_empty() {
                p { "Nothing since this was started." }
            } @else {
                div class="wide" { table {
                    thead { tr { th scope="col" { "Seen at (UTC)" } th scope="col" { "Process" } th scope="col" { "Client" } th scope="col" { "What" } } }
                    tbody { @for entry in entries { tr {
                        td class="time" { time datetime=(entry.time()) { (clock(entry)) } }
                        td { a href=(link(&entry.process)) { (entry.process) } }
                        td { (entry.client.as_deref().unwrap_or("")) }
                        td { (badge(entry.level, mark(entry.level))) " " (entry.text) }
                    } } }
                } }
            }
        }
    }
}

/// The time of the day.
fn clock(entry: &Entry) -> String {
    let time = entry.time();
    let of_day = time.split_once('T').map_or(&*time, |(_, of_day)| of_day);
    of_day.trim_end_matches('Z').to_owned()
}

fn link(address: &str) -> String {
    let escaped = form_escape(address);
    format!("/process?at={escaped}")
}

/// As in the query of an address.
fn form_escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn badge(health: Health, words: &str) -> Markup {
    html! { span class={ "badge " (class(health)) } { (words) } }
}

fn class(health: Health) -> &'static str {
    match health {
        Health::Bad => "bad",
        Health::Warn => "warn",
        Health::Good => "good",
        Health::Unknown => "unknown",
    }
}

/// A word for each colour.
fn word(health: Health) -> &'static str {
    match health {
        Health::Bad => "without a usable configuration or silent",
        Health::Warn => "on fallback or with an error",
        Health::Good => "in order",
        Health::Unknown => "unknown",
    }
}

fn mark(health: Health) -> &'static str {
    match health {
        Health::Bad => "bad",
        Health::Warn => "warning",
        Health::Good => "good",
        Health::Unknown => "news",
    }
}

const CELL: &str = "cell-";
/// Entries that are shown beside something else.
const FEW: usize = 12;
/// Processes in trouble that are listed with the reason.
const MANY: usize = 50;
