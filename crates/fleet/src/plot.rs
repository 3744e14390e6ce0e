//! What was counted, as a picture.

use std::fmt::Write as _;

use crate::record::{Report, Seen};

/// Draws how many connections came in at each control plane, and how many were refused, in each tenth of a second.
pub fn svg(report: &Report) -> String {
    let end = report.planes.iter().map(|plane| plane.moments.0.len()).max().unwrap_or(0).max(1);
    let height = TOP + report.planes.len() * (BAND + GAP);
    let mut text = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">
<style>.opens{{fill:#2b6cb0}}.refusals{{fill:#c53030}}.axis{{stroke:#888}}text{{fill:#333}}</style>
<text x="{LEFT}" y="20">{}: {} clients, simulated; per 0.1 s: connections (blue), refused (red)</text>
"##,
        report.scenario, report.clients
    );
    for (index, plane) in report.planes.iter().enumerate() {
        let floor = TOP + index * (BAND + GAP) + BAND;
        let seen = &plane.moments.0;
        let most = seen.iter().map(|seen| seen.opens.max(seen.refusals)).max().unwrap_or(0).max(1);
        _ = writeln!(
            text,
            r#"<text x="4" y="{}">{index}</text><text x="{LEFT}" y="{}">at most {most}</text>"#,
            floor - BAND / 2,
            floor - BAND - 4
        );
        _ = writeln!(text, r#"<line class="axis" x1="{LEFT}" y1="{floor}" x2="{}" y2="{floor}"/>"#, WIDTH - 10);
        let mut bars = |class: &str, count: fn(&Seen) -> u32| {
            for (at, count) in seen.iter().map(count).enumerate().filter(|(_, count)| *count > 0) {
                // At least a line that can be seen.
                let tall = (count as usize * BAND).div_ceil(most as usize);
                let x = LEFT as f64 + at as f64 * (WIDTH - LEFT - 10) as f64 / end as f64;
                _ = writeln!(
                    text,
                    r#"<rect class="{class}" x="{x:.1}" y="{}" width="1.5" height="{tall}"/>"#,
                    floor - tall
                );
            }
        };
        bars("opens", |seen| seen.opens);
        bars("refusals", |seen| seen.refusals);
        for second in (0..end / 10).step_by((end / 100).max(10)) {
            let x = LEFT + second * 10 * (WIDTH - LEFT - 10) / end;
            _ = writeln!(text, r#"<text x="{x}" y="{}">{second} s</text>"#, floor + 14);
        }
    }
    text.push_str("</svg>\n");
    text
}

const WIDTH: usize = 900;
const LEFT: usize = 40;
const TOP: usize = 50;
const BAND: usize = 90;
const GAP: usize = 44;
