//! Plots of comparisons that differ in the size of their input, as SVG.

use std::fmt::Write;

use super::comparison::Outcome;

/// Width and height of a panel, and the space around what it shows.
const PANEL: (f64, f64) = (380.0, 260.0);
const MARGIN: (f64, f64) = (52.0, 36.0);

/// Colours that can be read on white and on black; text is the reader's.
const STYLE: &str = "text{font:12px sans-serif;fill:#333}.grid{stroke:#8886;stroke-width:1}\
    .kpack{stroke:#e4572e;fill:#e4572e}.reference{stroke:#3a86c8;fill:#3a86c8}\
    polyline{stroke-width:2;fill:none!important}text.kpack,text.reference{stroke:none}\
    @media(prefers-color-scheme:dark){text{fill:#ccc}}";

/// What one panel shows.
struct Panel {
    title: String,
    /// The reference's, and kpack's.
    lines: [Vec<(f64, f64)>; 2],
}

/// The plots of `outcomes`: time, and memory, by size.
pub(super) fn draw(outcomes: &[Outcome]) -> String {
    let (width, height) = PANEL;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\">\n<style>{STYLE}</style>\n",
        2.0 * width,
        2.0 * height
    );
    for (row, (group, input, reference)) in [
        ("bytes", "MB of device code", "zstd -3 -T2"),
        ("files", "files in a tree", "cp -r, flushed"),
    ]
    .into_iter()
    .enumerate()
    {
        for (column, name) in ["seconds", "peak MB"].into_iter().enumerate() {
            let of = [Outcome::wall, Outcome::memory][column];
            let panel = Panel {
                title: format!("{name}, by {input}"),
                lines: [0, 1].map(|side| {
                    let points = outcomes.iter().filter(|outcome| outcome.group == group);
                    points
                        .map(|outcome| (f64::from(outcome.row.size), of(outcome)[side]))
                        .collect()
                }),
            };
            let (x, y) = (column as f64 * width, row as f64 * height);
            let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
            panel.draw(&mut svg, reference);
            svg += "</g>\n";
        }
    }
    svg + "</svg>\n"
}

impl Panel {
    fn draw(&self, svg: &mut String, reference: &str) {
        let points = || self.lines.iter().flatten();
        let (from_x, to_x) = decades(points().map(|point| point.0));
        let (from_y, to_y) = decades(points().map(|point| point.1));
        let (width, height) = (PANEL.0 - 1.5 * MARGIN.0, PANEL.1 - 2.0 * MARGIN.1);
        let x = |value: f64| MARGIN.0 + (value.log10() - from_x) / (to_x - from_x) * width;
        let y = |value: f64| MARGIN.1 + (to_y - value.log10()) / (to_y - from_y) * height;
        let (left, right, top, bottom) = (MARGIN.0, MARGIN.0 + width, MARGIN.1, MARGIN.1 + height);
        let mut line = |class: &str, from: (f64, f64), to: (f64, f64)| {
            let ((x1, y1), (x2, y2)) = (from, to);
            let _ = writeln!(
                svg,
                "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
            );
        };
        for decade in steps(from_x, to_x) {
            line("grid", (x(decade), top), (x(decade), bottom));
        }
        for decade in steps(from_y, to_y) {
            line("grid", (left, y(decade)), (right, y(decade)));
        }
        let mut text = |class: &str, anchor: &str, (x, y): (f64, f64), words: &str| {
            let _ = writeln!(
                svg,
                "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{words}</text>"
            );
        };
        text("", "start", (left, top - 20.0), &self.title);
        text("reference", "end", (right, top - 6.0), reference);
        text("kpack", "start", (left, top - 6.0), "kpack");
        for decade in steps(from_x, to_x) {
            text(
                "",
                "middle",
                (x(decade), bottom + 16.0),
                &decade.to_string(),
            );
        }
        for decade in steps(from_y, to_y) {
            text(
                "",
                "end",
                (left - 6.0, y(decade) + 4.0),
                &decade.to_string(),
            );
        }
        for (class, line) in ["reference", "kpack"].into_iter().zip(&self.lines) {
            let places: Vec<_> = line.iter().map(|point| (x(point.0), y(point.1))).collect();
            let list: Vec<_> = places
                .iter()
                .map(|(x, y)| format!("{x:.1},{y:.1}"))
                .collect();
            let _ = writeln!(
                svg,
                "<polyline class=\"{class}\" points=\"{}\"/>",
                list.join(" ")
            );
            for (x, y) in places {
                let _ = writeln!(
                    svg,
                    "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>"
                );
            }
        }
    }
}

/// The powers of ten around all values, as exponents.
fn decades(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (least, most) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    let from = least.log10().floor();
    (from, most.log10().ceil().max(from + 1.0))
}

/// The powers of ten between two exponents.
fn steps(from: f64, to: f64) -> impl Iterator<Item = f64> {
    (from as i32..=to as i32).map(|exponent| 10_f64.powi(exponent))
}
