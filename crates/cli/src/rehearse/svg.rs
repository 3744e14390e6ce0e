//! A rehearsal as a picture: a row for each outage and call, time from left to right.

use std::fmt::Write as _;
use std::time::Duration;

use mainstay_sim::{Fate, Outage, Rehearsal};

use super::text::name;

pub(super) fn draw(rehearsals: &[Rehearsal]) -> String {
    let mut rows = String::new();
    let mut y = 0;
    for rehearsal in rehearsals {
        y += LINE + 6;
        text(&mut rows, 8, y, "title", &format!("{}: {}", rehearsal.target, rehearsal.servers.join(", ")));
        for (at, call) in rehearsal.calls.iter().enumerate() {
            y += LINE;
            text(&mut rows, 20, y, "", &format!("{}  {call}", name(at)));
        }
        for outage in &rehearsal.outages {
            y += LINE + 6;
            text(
                &mut rows,
                8,
                y,
                if outage.costs.is_empty() { "good" } else { "bad" },
                &format!("{}: {}", outage.id, outage.title),
            );
            let top = y + 4;
            for at in 0..rehearsal.calls.len() {
                y += LINE;
                text(&mut rows, 20, y, "", &name(at));
                spans(&mut rows, outage, at, y - LINE + 5);
            }
            if outage.id == super::CALM {
                continue;
            }
            let (begin, end) = (x(outage.span.0), x(outage.span.1));
            let (width, height) = (end - begin, y + 4 - top);
            let what = events(outage);
            _ = writeln!(
                rows,
                r#"<rect class="outage" x="{begin}" y="{top}" width="{width}" height="{height}"><title>{}</title></rect>"#,
                escape(&what)
            );
        }
        y += LINE;
    }
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{}" font-family="sans-serif" font-size="12">
<style>text{{fill:#222}} .title{{font-weight:bold;font-size:14px}} .good{{fill:#17692f}} .bad{{fill:#a11}} rect.sent{{fill:#9fd3ad}} rect.purpose{{fill:#bbb}} rect.wait{{fill:#f2c14e}} rect.fail{{fill:#d64545}} rect.outage{{fill:none;stroke:#444;stroke-dasharray:4 3;pointer-events:all}}</style>
<rect width="100%" height="100%" fill="#fff"/>
{rows}</svg>
"##,
        y + LINE
    )
}

/// What becomes of a call, as bars that say why.
fn spans(rows: &mut String, outage: &Outage, call: usize, y: usize) {
    let Some(fates) = outage.fates.get(call) else { return };
    for (at, (from, fate, why)) in fates.iter().enumerate() {
        let to = fates.get(at + 1).map_or(outage.end, |(next, ..)| *next);
        let (left, width) = (x(*from), (x(to) - x(*from)).max(1));
        let class = match fate {
            Fate::Sent => "sent",
            Fate::OnPurpose => "purpose",
            Fate::Wait => "wait",
            Fate::Fail => "fail",
        };
        _ = writeln!(
            rows,
            r#"<rect class="{class}" x="{left}" y="{y}" width="{width}" height="{}"><title>{} from {:.2} s to {:.2} s: {}</title></rect>"#,
            LINE - 5,
            fate.name(),
            from.as_secs_f64(),
            to.as_secs_f64(),
            escape(why)
        );
    }
}

fn events(outage: &Outage) -> String {
    let lines = outage.timeline.iter().map(|(at, what)| format!("{:.2} s  {what}", at.as_secs_f64()));
    lines.collect::<Vec<_>>().join("\n")
}

fn text(rows: &mut String, x: usize, y: usize, class: &str, what: &str) {
    _ = writeln!(rows, r#"<text x="{x}" y="{y}" class="{class}">{}</text>"#, escape(what));
}

/// Where a moment is.
fn x(at: Duration) -> usize {
    LEFT + usize::try_from(at.as_millis()).unwrap_or_default() * PER_SECOND / 1000
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const LINE: usize = 16;
const LEFT: usize = 50;
const PER_SECOND: usize = 7;
const WIDTH: usize = LEFT + 115 * PER_SECOND;
