//! A rehearsal for people.

use std::{fmt, time::Duration};

use mainstay_sim::{Fate, Outage, Rehearsal};

use crate::{
    failure::Failure,
    get::clean,
    output::{BAD, DIM, GOOD, Output, TITLE, styled},
};

pub(super) fn tell(
    rehearsal: &Rehearsal,
    is_allowed: &dyn Fn(&Outage) -> bool,
    output: &mut Output,
) -> Result<(), Failure> {
    let servers = rehearsal.servers.join(", ");
    output.line(format_args!("{}: {}", styled(TITLE, clean(&rehearsal.target)), clean(&servers)))?;
    for (at, call) in rehearsal.calls.iter().enumerate() {
        let usual = match call.usual {
            Fate::Sent => String::new(),
            Fate::OnPurpose => styled(DIM, "  ended on purpose"),
            Fate::Wait => styled(BAD, "  waits, without any outage"),
            Fate::Fail => styled(BAD, "  fails, without any outage"),
        };
        output.line(format_args!("  {}  {}{usual}", name(at), clean(&call.to_string())))?;
    }
    if !rehearsal.unreached.is_empty() {
        let routes: Vec<_> = rehearsal.unreached.iter().map(|route| format!("#{route}")).collect();
        output.line(styled(
            DIM,
            format_args!("  no call was found for {} (`mainstay explain --all`)", routes.join(", ")),
        ))?;
    }
    for outage in &rehearsal.outages {
        if outage.id == super::CALM && outage.costs.is_empty() {
            continue;
        }
        output.line("")?;
        tell_one(rehearsal, outage, is_allowed(outage), output)?;
    }
    let lossless = rehearsal.outages.iter().all(|outage| outage.costs.is_empty() || is_allowed(outage));
    output.line("")?;
    if lossless {
        let but =
            if rehearsal.outages.iter().any(|outage| !outage.costs.is_empty()) { " but those allowed" } else { "" };
        return output.line(styled(GOOD, format_args!("no call is lost in any of these outages{but}")));
    }
    if !rehearsal.remedies.is_empty() {
        output.line(styled(TITLE, "What would help (rehearsed)"))?;
    }
    for remedy in &rehearsal.remedies {
        output.line(format_args!("  {}: nothing lost in {}", remedy.what, clean(&remedy.mended.join(", "))))?;
    }
    Ok(())
}

fn tell_one(rehearsal: &Rehearsal, outage: &Outage, allowed: bool, output: &mut Output) -> Result<(), Failure> {
    let (style, allowed) = match (outage.costs.is_empty(), allowed) {
        (true, _) => (GOOD, ""),
        (false, true) => (DIM, " (allowed)"),
        (false, false) => (BAD, ""),
    };
    output.line(format_args!("{}  {}{allowed}", styled(style, clean(&outage.id)), clean(&outage.title)))?;
    for at in 0..rehearsal.calls.len() {
        output.line(format_args!("  {}  {}", name(at), bar(outage, at)))?;
    }
    for (at, what) in &outage.timeline {
        output.line(format_args!("  {:>9}  {}", Seconds(*at), styled(DIM, clean(what))))?;
    }
    for cost in &outage.costs {
        let call = clean(&rehearsal.calls[cost.call].to_string());
        let what = format!("{} is lost for {}: {call}: {}", name(cost.call), Seconds(cost.lost), clean(&cost.why));
        output.line(format_args!("  {}", styled(style, what)))?;
    }
    if outage.costs.is_empty() {
        let wait = match outage.longest_wait {
            Duration::ZERO => String::new(),
            wait => format!("; calls wait for up to {}", Seconds(wait)),
        };
        output.line(format_args!("  {}{wait}", styled(GOOD, "costs no call")))?;
    }
    Ok(())
}

/// What becomes of calls over time: `·` sent, `~` wait, `#` fail, `x` ended on purpose; `|` where the outage begins and ends.
fn bar(outage: &Outage, call: usize) -> String {
    let mut bar = String::new();
    let step = Duration::from_secs(2);
    let mut at = Duration::ZERO;
    while at < outage.end {
        if outage.id != super::CALM && (at == outage.span.0 || at == outage.span.1) {
            bar.push('|');
        }
        // What happened at that very moment has had its effect.
        bar.push(match outage.fate(call, at + step / 2) {
            Fate::Sent => '·',
            Fate::OnPurpose => 'x',
            Fate::Wait => '~',
            Fate::Fail => '#',
        });
        at += step;
    }
    bar
}

/// A letter for each call.
pub(super) fn name(at: usize) -> String {
    let letter = char::from(b'A' + u8::try_from(at % 26).unwrap_or_default());
    if at < 26 { letter.to_string() } else { format!("{letter}{}", at / 26) }
}

/// A span in seconds.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.2} s", self.0.as_secs_f64()))
    }
}
