//! Pages that answer a question: why a call goes where it goes, and what is wrong with what a process holds.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};
use mainstay_check::{Finding, Level};
use maud::{Markup, html};

use super::{badge, page};
use crate::{
    dash::{watch::Look, watched::Health},
    explain::Explained,
};

/// What is asked for.
#[derive(Debug, Default)]
pub(in crate::dash) struct ExplainForm {
    pub(in crate::dash) at: String,
    pub(in crate::dash) target: String,
    pub(in crate::dash) method: String,
    pub(in crate::dash) headers: HeaderMap,
    /// As they were typed.
    typed: String,
}

impl ExplainForm {
    pub(in crate::dash) fn of(params: &BTreeMap<String, String>) -> Self {
        let field = |name: &str| params.get(name).map_or("", |value| value.trim()).to_owned();
        let typed = field("headers");
        let mut headers = HeaderMap::new();
        for (name, value) in typed.lines().filter_map(|line| line.split_once(':')) {
            // One that cannot be a header of a call is as good as none.
            if let (Ok(name), Ok(value)) =
                (name.trim().to_ascii_lowercase().parse::<HeaderName>(), value.trim().parse::<HeaderValue>())
            {
                headers.append(name, value);
            }
        }
        Self { at: field("at"), target: field("target"), method: field("method"), headers, typed }
    }

    pub(in crate::dash) fn is_filled(&self) -> bool {
        ![&self.at, &self.target, &self.method].into_iter().any(String::is_empty)
    }
}

pub(in crate::dash) fn explain(form: &ExplainForm, look: &Look, outcome: Option<&Result<Explained, String>>) -> Markup {
    let clients = look.processes.iter().flat_map(|process| &process.held).flat_map(|held| &held.clients);
    let mut targets: Vec<&str> =
        clients.filter_map(|client| client.row.target.as_deref()).filter(|target| target.starts_with("xds:")).collect();
    targets.sort_unstable();
    targets.dedup();
    page(
        "Explain",
        None,
        &html! {
            h1 { "Explain" }
            p { "Why a call would go where it goes, by the configuration that a process holds. No call is made." }
            form action="/explain" {
                (processes(look, &form.at))
                label { "Target" input name="target" list="targets" required placeholder="xds:///greeter" value=(form.target); }
                datalist id="targets" { @for target in targets { option value=(target) {} } }
                label { "Method" input name="method" required placeholder="/hello.Greeter/SayHello" value=(form.method); }
                label { "Headers, one in each line" textarea name="headers" rows="3" placeholder="x-canary: yes" { (form.typed) } }
                button { "Explain" }
            }
            @match outcome {
                None => {}
                Some(Ok(explained)) => {
                    h2 { @if explained.is_sent { (badge(Health::Good, "would be sent")) } @else { (badge(Health::Bad, "would not be sent")) } }
                    pre tabindex="0" { (explained.text) }
                }
                Some(Err(error)) => { p class="error" { (error) } }
            }
        },
    )
}

pub(in crate::dash) fn check(at: &str, look: &Look, outcome: Option<&Result<Vec<Finding>, String>>) -> Markup {
    page(
        "Check",
        None,
        &html! {
            h1 { "Check" }
            p { "What is wrong with the resources that a process holds: what clients reject, what leads nowhere, what gets no calls." }
            form action="/check" { (processes(look, at)) button { "Check" } }
            @match outcome {
                None => {}
                Some(Err(error)) => { p class="error" { (error) } }
                Some(Ok(findings)) if findings.is_empty() => { p { (badge(Health::Good, "nothing found")) } }
                Some(Ok(findings)) => {
                    div class="wide" { table {
                        caption { (findings.len()) " found" }
                        thead { tr { th scope="col" { "Level" } th scope="col" { "Check" } th scope="col" { "Resource" } th scope="col" { "Field" } th scope="col" { "What" } } }
                        tbody { @for finding in findings { tr {
                            td { (badge(level(finding), &finding.level().to_string())) }
                            td { (finding.id) }
                            th scope="row" { (finding.resource) @if !finding.file.is_empty() { " " span class="facts" { (finding.file) @if let Some(line) = finding.line { ":" (line) } } } }
                            td { (finding.path) }
                            td { (finding.message) }
                        } } }
                    } }
                    p { "On the command line, " code { "mainstay check --explain ID" } " says more about each." }
                }
            }
        },
    )
}

fn processes(look: &Look, chosen: &str) -> Markup {
    html! {
        label { "Process" select name="at" required {
            @for process in &look.processes {
                option value=(process.address) selected[process.address == chosen] { (process.address) ", " (process.words) }
            }
        } }
    }
}

fn level(finding: &Finding) -> Health {
    match finding.level() {
        Level::Error => Health::Bad,
        Level::Warning => Health::Warn,
        Level::Note => Health::Unknown,
    }
}
