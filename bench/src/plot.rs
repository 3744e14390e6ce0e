//! Bar charts as SVG.

use std::fmt::Write as _;

/// A chart of horizontal bars.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    pub(crate) title: String,
    /// Of the numbers.
    pub(crate) unit: &'static str,
    pub(crate) bars: Vec<Bar>,
}

#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    /// Drawn in the colour of ours rather than that of the others.
    pub(crate) ours: bool,
}

impl Plot {
    pub(crate) fn new(title: impl Into<String>, unit: &'static str) -> Self {
        Self { title: title.into(), unit, bars: Vec::new() }
    }

    pub(crate) fn bar(&mut self, label: impl Into<String>, value: f64, ours: bool) {
        self.bars.push(Bar { label: label.into(), value, ours });
    }

    pub(crate) fn svg(&self) -> String {
        let most = self.bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
        let height = TOP + ROW * self.bars.len() + 10;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"10\" y=\"22\" font-size=\"15\">{} ({})</text>\n",
            escape(&self.title),
            escape(self.unit)
        );
        for (place, bar) in self.bars.iter().enumerate() {
            let top = TOP + ROW * place;
            let length = (bar.value.max(0.0) / most * SCALE).max(1.0);
            let colour = if bar.ours { "#1a7f5a" } else { "#9aa5b1" };
            let middle = top + 15;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>\
                 <rect x=\"{LEFT}\" y=\"{top}\" width=\"{length:.1}\" height=\"20\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{middle}\">{}</text>",
                LEFT - 8,
                escape(&bar.label),
                LEFT as f64 + length + 6.0,
                number(bar.value)
            );
        }
        svg + "</svg>\n"
    }
}

/// A number as people read it.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const WIDTH: usize = 860;
const LEFT: usize = 290;
const SCALE: f64 = 480.0;
const TOP: usize = 40;
const ROW: usize = 26;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_fills_the_scale_and_labels_are_escaped() {
        let mut plot = Plot::new("a < b", "ns");
        plot.bar("one", 5.0, true);
        plot.bar("two", 10.0, false);
        let svg = plot.svg();
        assert!(svg.contains("width=\"240.0\"") && svg.contains("width=\"480.0\""), "{svg}");
        assert!(svg.contains("a &lt; b (ns)"), "{svg}");
    }
}
