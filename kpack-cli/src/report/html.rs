//! The report as a self-contained HTML page: tables and two treemaps.

use std::collections::BTreeMap;
use std::fmt::Write;

use time::OffsetDateTime;

use super::treemap::{Rectangle, layout};
use kpack_artifact::sizes::{Depth, Row, Sizes};
use kpack_core::words::bytes;

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 640.0;
/// Height of a module's label.
const HEADING: f64 = 16.0;
/// A rectangle smaller than this gets no text.
const LEAST_TEXT: (f64, f64) = (46.0, 13.0);

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1d2430;--quiet:#5b6676;--paper:#fff;--line:#d8dde5}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--quiet:#9aa5b4;--paper:#15191f;--line:#333b47}}\
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1200px;\
margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.1rem;margin:1.8rem 0 .4rem}\
p{color:var(--quiet);margin:.2rem 0 1rem}svg{width:100%;height:auto;display:block}\
svg foreignObject{pointer-events:none}\
svg div{font:11px/13px system-ui,sans-serif;color:#10141a;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}\
svg .m div,svg .t div{font-weight:600}\
svg rect{stroke:var(--paper);stroke-width:1}svg rect:hover{stroke:var(--ink);stroke-width:2}\
table{border-collapse:collapse;width:100%;font-size:13px}th,td{padding:.25rem .6rem;text-align:left;\
border-bottom:1px solid var(--line)}details{margin:.3rem 0}summary{cursor:pointer}th{position:sticky;top:0;background:var(--paper)}\
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}td{overflow-wrap:anywhere}\
@media print{body{max-width:none;margin:0}svg,tr{break-inside:avoid}th{position:static}details::details-content{content-visibility:visible}}\
tr.m td{font-weight:600;border-top:2px solid var(--line)}";

/// Selects the size of a row to draw: before or after the split.
type Measure = fn(&Row) -> u64;

/// An HTML page about `sizes` with this title. It needs no other file.
pub fn page(sizes: &Sizes, title: &str) -> String {
    let title = escape(title);
    let (before, after) = sizes.total();
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n\
         <p>{}</p>\n",
        date(sizes.newest)
    );
    page += &machines(sizes);
    let scale = before.max(after).max(1);
    let (headings, pictures) = match sizes.before_was_measured {
        true => (["Before", "After"], "before the split, the second one those after it"),
        false => (["Unpacked", "Now"], "of the unpacked code, the second one those of the files"),
    };
    let measures: [(u64, Measure); 2] = [(before, |row| row.before), (after, |row| row.after)];
    let _ = writeln!(
        page,
        "<p>The first picture shows the sizes {pictures}, at the same scale. Each box is a binary's code for one target. \
         Point at a box to see its name and size.</p>"
    );
    for (name, (total, size)) in headings.into_iter().zip(measures) {
        // Both to one scale, so that the areas can be compared.
        let height = (HEIGHT * total as f64 / scale as f64).max(HEADING);
        let _ = write!(page, "<h2>{name}: {}</h2>\n{}", bytes(total), svg(sizes, height, size));
    }
    let columns = columns(sizes);
    page + &totals("By target", "target", &sizes.by_target(), target_name, columns)
        + &totals("By module", "module", &sizes.by(Depth::Module), |row| &row.module, columns)
        + "<h2>By binary</h2>\n"
        + &binaries(sizes)
        + &notes(sizes)
        + "</body>\n</html>\n"
}

/// The words for the sizes before and after: without an unsplit tree, nobody knows that there was a split.
pub fn columns(sizes: &Sizes) -> [&'static str; 2] {
    if sizes.before_was_measured { ["before", "after"] } else { ["unpacked", "now"] }
}

fn target_name(row: &Row) -> &str {
    row.target.as_deref().unwrap_or("host")
}

/// What is installed for each GPU, which packagers ask for first.
fn machines(sizes: &Sizes) -> String {
    let heading = heading(&["GPU"], columns(sizes));
    let mut text = format!("<h2>What a machine has installed</h2>\n<table>\n{heading}");
    for machine in &sizes.machines {
        line(&mut text, "", &[&machine.target], (machine.before, machine.after));
    }
    text += "</table>\n";
    text
}

/// A time in seconds since 1970 as a date such as 2024-05-01.
fn date(seconds: i64) -> String {
    let time = OffsetDateTime::from_unix_timestamp(seconds);
    time.map_or_else(|_| String::new(), |time| time.date().to_string())
}

/// A table with a line for each of `rows`, and their sum.
fn totals(
    title: &str,
    what: &str,
    rows: &[Row],
    name: impl Fn(&Row) -> &str,
    columns: [&str; 2],
) -> String {
    let mut text = format!("<h2>{title}</h2>\n<table>\n{}", heading(&[what], columns));
    let mut sum = (0, 0);
    for row in rows {
        sum = (sum.0 + row.before, sum.1 + row.after);
        line(&mut text, "", &[name(row)], (row.before, row.after));
    }
    line(&mut text, " class=\"m\"", &["total"], sum);
    text + "</table>\n"
}

/// The binaries of each module, collapsed.
fn binaries(sizes: &Sizes) -> String {
    let mut text = String::new();
    let columns = columns(sizes);
    let [before, after] = columns;
    for module in sizes.by(Depth::Module) {
        let _ = write!(
            text,
            "<details><summary><b>{}</b> {} {before}, {} {after}</summary>\n<table>\n{}",
            escape(&module.module),
            bytes(module.before),
            bytes(module.after),
            heading(&["target", "binary"], columns)
        );
        for row in sizes.rows.iter().filter(|row| row.module == module.module) {
            let names = [target_name(row), &row.what];
            line(&mut text, "", &names, (row.before, row.after));
        }
        text += "</table></details>\n";
    }
    text
}

fn notes(sizes: &Sizes) -> String {
    let before = if sizes.before_was_measured {
        "In a fat binary, each bundle counts for its targets (a compressed bundle in \
         proportion to the sizes of its code objects). Padding and everything else counts \
         for the host. An archive compresses each code object by itself, so that it can be \
         loaded by itself. This takes more space than a bundle that is compressed as a \
         whole, and less than an uncompressed one."
    } else {
        "No unsplit tree was measured. The sizes of the unpacked code objects take its place."
    };
    let after = "Identical code objects are stored once and count for the first binary that has \
                 them. The index of an archive has its own line. A line that grows has files that \
                 kpack adds, such as manifests, or that it moved there.";
    format!("<p>{before} {after}</p>\n")
}

fn svg(sizes: &Sizes, height: f64, size: Measure) -> String {
    let mut text =
        format!("<svg viewBox=\"0 0 {WIDTH} {height:.1}\" role=\"img\" aria-label=\"treemap\">\n");
    let area = Rectangle { x: 0.0, y: 0.0, width: WIDTH, height };
    let mut colours: BTreeMap<&str, usize> = BTreeMap::new();
    for row in &sizes.rows {
        let next = colours.len();
        colours.entry(&row.module).or_insert(next);
    }
    let all: Vec<&Row> = sizes.rows.iter().collect();
    for (module, rows, place) in groups(&all, area, size, |row| row.module.clone()) {
        // Hues that are far apart from one module to the next (golden angle).
        let hue = colours.get(module.as_str()).copied().unwrap_or(0) as f64 * 137.5 % 360.0;
        let sum: u64 = rows.iter().map(|row| size(row)).sum();
        rectangle(&mut text, place, (hue, 78.0), &format!("{module}: {}", bytes(sum)));
        label(&mut text, place, &format!("{module} {}", bytes(sum)), "m");
        let inner = place.inset(2.0, HEADING);
        let target_of = |row: &Row| row.target.clone().unwrap_or_else(|| "host".to_owned());
        for (index, (target, rows, place)) in
            groups(&rows, inner, size, target_of).into_iter().enumerate()
        {
            let light = 72.0 - (index % 3) as f64 * 5.0;
            let boxes = groups(&rows, place, size, |row| row.what.clone());
            for (index, (what, rows, place)) in boxes.into_iter().enumerate() {
                let sum: u64 = rows.iter().map(|row| size(row)).sum();
                let hint = format!("{module}, {target}, {what}: {}", bytes(sum));
                rectangle(&mut text, place, (hue, light), &hint);
                // The first one is below the target's own label.
                let below = place.inset(0.0, if index == 0 { LEAST_TEXT.1 } else { 0.0 });
                let name = what.rsplit('/').next().unwrap_or_default();
                label(&mut text, below, name, "w");
            }
            let sum: u64 = rows.iter().map(|row| size(row)).sum();
            label(&mut text, place, &format!("{target} {}", bytes(sum)), "t");
        }
    }
    text + "</svg>\n"
}

/// Groups rows by name, largest first, and assigns each group a rectangle in `area`. Empty groups
/// are dropped.
fn groups<'a>(
    rows: &[&'a Row],
    area: Rectangle,
    size: Measure,
    name: impl Fn(&Row) -> String,
) -> Vec<(String, Vec<&'a Row>, Rectangle)> {
    let mut by_name: BTreeMap<String, (u64, Vec<&Row>)> = BTreeMap::new();
    for row in rows.iter().copied().filter(|row| size(row) > 0) {
        let group = by_name.entry(name(row)).or_default();
        group.0 += size(row);
        group.1.push(row);
    }
    let mut groups: Vec<(String, (u64, Vec<&Row>))> = by_name.into_iter().collect();
    groups.sort_by_key(|(_, (size, _))| std::cmp::Reverse(*size));
    let sizes: Vec<u64> = groups.iter().map(|(_, (size, _))| *size).collect();
    let places = layout(&sizes, area);
    let place = |((name, (_, rows)), place)| (name, rows, place);
    groups.into_iter().zip(places).map(place).collect()
}

fn rectangle(text: &mut String, place: Rectangle, (hue, light): (f64, f64), hint: &str) {
    let Rectangle { x, y, width, height } = place;
    let _ = writeln!(
        text,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
         fill=\"hsl({hue:.0} 38% {light:.0}%)\"><title>{}</title></rect>",
        escape(hint)
    );
}

/// A line of text in a box, which a browser shortens with an ellipsis where it is too long.
fn label(text: &mut String, place: Rectangle, name: &str, class: &str) {
    let Rectangle { x, y, width, height } = place;
    if width < LEAST_TEXT.0 || height < LEAST_TEXT.1 {
        return;
    }
    let _ = writeln!(
        text,
        "<foreignObject class=\"{class}\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{}\"><div>{}</div></foreignObject>",
        x + 4.0,
        width - 8.0,
        LEAST_TEXT.1,
        escape(name)
    );
}

fn heading(names: &[&str], [before, after]: [&str; 2]) -> String {
    let names: String = names.iter().map(|name| format!("<th>{name}")).collect();
    format!(
        "<tr>{names}<th class=\"n\">{before}<th class=\"n\">{after}<th class=\"n\">change</tr>\n"
    )
}

fn line(text: &mut String, class: &str, names: &[&str], (before, after): (u64, u64)) {
    let names: String = names.iter().map(|name| format!("<td>{}", escape(name))).collect();
    let _ = writeln!(
        text,
        "<tr{class}>{names}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}</tr>",
        bytes(before),
        bytes(after),
        change(before, after)
    );
}

/// `-37.5%`; empty if nothing changed.
fn change(before: u64, after: u64) -> String {
    match before {
        _ if before == after => String::new(),
        0 => "new".to_owned(),
        _ => format!("{:+.1}%", (after as f64 / before as f64 - 1.0) * 100.0),
    }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days() {
        for (seconds, expected) in [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (1_735_689_599, "2024-12-31"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }
}
