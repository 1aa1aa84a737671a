//! The HTML page of an audit: one self-contained file with the paths side by side.
//!
//! Everything from captures and file names is escaped.

use std::fmt;
use std::io::{self, Write};

use plait_config::{grouped, pluralize};
use plait_trace::Direction;

use crate::document::{Attack, Audit, Conclusion, ConnectionView, DirectionView, Excerpt, Packets, PathView};
use crate::mode::{Mode, ModeSource};

/// How many connections per path the page lists; the document lists all.
const MAX_CONNECTIONS: usize = 50;

/// The style of the report of `plait analyze`.
const REPORT_STYLE: &str = plait_trace::STYLE;
const STYLE: &str = include_str!("page/audit.css");
const HEAD: &str = include_str!("page/head.html");
/// Each mode with what an eavesdropper reads, and why.
const MODES: [(Mode, &str, &str); 4] = [
    (Mode::Off, "Everything, on every path.", "Plain Multipath TCP: each path carries plaintext."),
    (
        Mode::Xor64,
        "Text and known formats, after a short computation.",
        "Each byte is XORed with the 64 before it. A few hundred contiguous bytes of text or one known header are enough \
                 to break it: obfuscation, not encryption.",
    ),
    (
        Mode::Stream,
        "Nothing, except on the trusted path.",
        "Encrypted with a key derived from secrets that crossed only the trusted path. Tampering is not detected.",
    ),
    (
        Mode::Sealed,
        "Nothing, on any path.",
        "Authenticated encryption, with witnesses on all paths: tampering and truncation are detected unless an attacker \
                 is active on every path at once.",
    ),
];

/// Writes the page.
///
/// # Errors
/// Writing to `out` fails.
pub fn write_html(audit: &Audit, out: &mut impl Write) -> io::Result<()> {
    let (before, after) = HEAD.split_once("{{style}}").unwrap_or((HEAD, ""));
    write!(out, "{before}{REPORT_STYLE}{STYLE}{after}")?;
    writeln!(
        out,
        "<p id=\"read\" class=\"soft\">{} read. Each path is shown as seen by an eavesdropper on that path alone.</p></div>\
         {THEME}</header>\n<main>",
        pluralize(audit.packets as usize, "packet")
    )?;
    for damaged in &audit.damaged {
        let (capture, error) = (Text(&damaged.capture), Text(&damaged.error));
        writeln!(out, "<p class=\"warning\">{capture}: {error}; packets before the damage are used.</p>")?;
    }
    if audit.payload_dropped > 0 {
        let dropped = grouped(audit.payload_dropped);
        writeln!(
            out,
            "<p class=\"warning\">{dropped} bytes of payload exceed the memory limit and are not audited.</p>"
        )?;
    }
    writeln!(out, "<section class=\"views\" aria-label=\"Paths\">")?;
    audit.paths.iter().try_for_each(|path| write_view(path, out))?;
    writeln!(out, "</section>")?;
    write_modes(audit, out)?;
    write_connections(audit, out)?;
    writeln!(
        out,
        "</main>\n<footer class=\"soft small\"><p>Crossed: the share of the connections' streams that crossed a path at least once, \
         not counting retransmissions. Read: the share of that which is recovered as plaintext. Correct: the share of the \
         ground truth that crossed and was recovered correctly.</p></footer>\n<script>{SCRIPT}</script>\n</body>\n</html>"
    )
}

const THEME: &str = "<button id=\"theme\" type=\"button\" aria-label=\"Switch between light and dark\" title=\"Light or dark\">\
    <svg viewBox=\"0 0 20 20\" width=\"18\" height=\"18\" aria-hidden=\"true\"><circle cx=\"10\" cy=\"10\" r=\"7.2\" \
    fill=\"none\" stroke=\"currentColor\" stroke-width=\"1.6\"/><path d=\"M10 2.8a7.2 7.2 0 0 1 0 14.4z\" \
    fill=\"currentColor\"/></svg></button>";

const SCRIPT: &str = "const root = document.documentElement;\
    root.dataset.theme = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';\
    document.getElementById('theme').onclick = () => { root.dataset.theme = root.dataset.theme === 'dark' ? 'light' : 'dark'; };";

/// Writes the card of a path.
fn write_view(view: &PathView, out: &mut impl Write) -> io::Result<()> {
    let mode = view.mode.map_or("not used", Mode::name);
    writeln!(
        out,
        "<article class=\"view {}\"><h2>{} <span class=\"mode\">{mode}</span></h2>",
        tone(view),
        Text(&view.path)
    )?;
    let (figure, of) = figure(view);
    writeln!(out, "<p class=\"figure\">{figure}</p><p>{}</p>", Text(&of))?;
    write_meter("crossed (share of the streams)", view.exposure.fraction, "", out)?;
    let read = match view.missing_evidence.is_empty() {
        true => "read (share of the streams)",
        false => "read (share of the streams), at least",
    };
    write_meter(read, view.exposure.fraction * view.recovered_fraction, "of-read", out)?;
    writeln!(out, "<p class=\"verdict\">{}</p>", Text(&view.verdict))?;
    if let Some((view, excerpt)) = excerpt(view) {
        let wire = excerpt.wire.iter().copied().map(Some);
        writeln!(
            out,
            "<h3>On the wire, from byte {}</h3><p class=\"bytes\">{}</p>",
            grouped(excerpt.position),
            Bytes(wire.collect())
        )?;
        let found = if view.recovered_bytes > 0 { " found" } else { "" };
        write!(out, "<h3>As read by the eavesdropper</h3><p class=\"bytes{found}\">")?;
        match excerpt.plain.iter().any(Option::is_some) {
            true => writeln!(out, "{}</p>", Bytes(excerpt.plain.clone()))?,
            false => writeln!(out, "<span class=\"soft\">nothing recovered</span></p>")?,
        }
    }
    writeln!(out, "<dl>")?;
    let mut fact = |name: &str, value: String| writeln!(out, "<dt>{name}</dt><dd>{}</dd>", Text(&value));
    fact("crossed", format!("{} bytes", grouped(view.exposure.bytes)))?;
    if view.not_captured_bytes > 0 {
        let (missing, wire) = (grouped(view.not_captured_bytes), grouped(view.wire_bytes));
        fact("not captured", format!("{missing} of {wire} bytes on the wire"))?;
    }
    if view.missing_bytes > 0 {
        fact("missing packets", format!("with {} bytes", grouped(view.missing_bytes)))?;
    }
    fact(
        "contiguous runs",
        format!("{}, longest {}", grouped(view.exposure.runs as u64), grouped(view.exposure.longest_run)),
    )?;
    let packets: Vec<&Packets> = directions(view).map(|direction| &direction.packets).collect();
    let first = packets.iter().filter_map(|packets| packets.first).reduce(f64::min);
    let last = packets.iter().filter_map(|packets| packets.last).reduce(f64::max);
    if let (Some(first), Some(last)) = (first, last) {
        let count = packets.iter().map(|packets| packets.count).sum();
        fact("packets", format!("{} in {:.1} s", grouped(count), last - first))?;
    }
    if let Some(Attack { runs, broken, .. }) = &view.attack {
        fact("attacked", format!("{}, {broken} broken", pluralize(*runs, "run")))?;
        fact("attack time", format!("{:.1} s", view.attack_seconds))?;
    }
    if view.recovered_bytes > 0 {
        fact("confidence", percent(view.confidence))?;
    }
    if let Some(correct) = view.correct_fraction {
        fact("correct", percent(correct))?;
    }
    for identifier in view.connections.iter().flat_map(|connection| &connection.identifiers).take(4) {
        fact(identifier.kind, identifier.value.clone())?;
    }
    writeln!(out, "</dl></article>")
}

/// The figure of a card, and what it is.
fn figure(view: &PathView) -> (String, String) {
    let of = "of the bytes that crossed are read";
    let missing = view.missing_evidence.first();
    match view.conclusion {
        Conclusion::NothingCrossed => ("\u{2013}".into(), "nothing crossed".into()),
        Conclusion::CannotJudge => ("cannot judge".into(), missing.cloned().unwrap_or_default()),
        Conclusion::NothingRead => ("0 %".into(), of.into()),
        Conclusion::Read => match missing {
            None => (percent(view.recovered_fraction), of.into()),
            Some(missing) => (
                format!("\u{2265} {}", percent(view.recovered_fraction)),
                format!("{of}; cannot judge the rest: {missing}"),
            ),
        },
    }
}

/// The CSS class of a card.
fn tone(view: &PathView) -> &'static str {
    match view.conclusion {
        Conclusion::NothingCrossed => "none",
        Conclusion::CannotJudge => "unjudged",
        Conclusion::NothingRead => "safe",
        // Of a part nobody knows whether it is the smaller one.
        Conclusion::Read if view.recovered_fraction > 0.5 || !view.missing_evidence.is_empty() => "read",
        Conclusion::Read => "part",
    }
}

fn write_meter(name: &str, fraction: f64, class: &str, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "<div class=\"meter\"><span>{name}</span><span>{}</span><div class=\"track\"><div class=\"part {class}\" \
         style=\"width:{:.2}%\"></div></div></div>",
        percent(fraction),
        100.0 * fraction.clamp(0.0, 1.0)
    )
}

fn directions(view: &PathView) -> impl Iterator<Item = &DirectionView> {
    view.connections
        .iter()
        .flat_map(|connection| Direction::BOTH.map(|direction| connection.directions.in_direction(direction)))
}

/// The excerpt of the direction with the most recovered, or else captured, bytes.
fn excerpt(view: &PathView) -> Option<(&DirectionView, &Excerpt)> {
    let largest =
        directions(view).max_by_key(|direction| (direction.recovered_bytes, direction.captured_bytes))?;
    Some((largest, largest.excerpt.as_ref()?))
}

fn write_modes(audit: &Audit, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "<section><h2>What each mode promises</h2><p class=\"soft\">By design, whatever these captures show.</p><div class=\"scroll\">\
         <table class=\"modes\"><thead><tr><th>mode</th><th class=\"text\">an eavesdropper reads</th><th class=\"text\">why</th></tr>\
         </thead><tbody>"
    )?;
    for (mode, read, reason) in MODES {
        let here =
            audit.paths.iter().flat_map(|path| &path.connections).any(|connection| connection.mode == mode);
        let class = if here { " class=\"here\"" } else { "" };
        writeln!(out, "<tr{class}><td><b>{mode}</b></td><td>{read}</td><td>{reason}</td></tr>")?;
    }
    writeln!(out, "</tbody></table></div></section>")
}

fn write_connections(audit: &Audit, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "<section><details><summary>Connections and directions</summary><div class=\"scroll\"><table class=\"dense\"><thead><tr>\
         <th class=\"text\">path</th><th>connection</th><th class=\"text\">mode</th><th class=\"text\">direction</th><th>crossed</th>\
         <th>runs</th><th>longest</th><th>read</th><th>correct</th><th class=\"text\">looks like</th><th>bits per byte</th><th>packets</th>\
         <th>attacked</th><th>broken</th></tr></thead><tbody>"
    )?;
    for path in &audit.paths {
        for connection in path.connections.iter().take(MAX_CONNECTIONS) {
            for direction in Direction::BOTH {
                write_direction(path, connection, direction, out)?;
            }
        }
        let more = path.connections.len().saturating_sub(MAX_CONNECTIONS);
        if more > 0 {
            writeln!(
                out,
                "<tr><td class=\"text\" colspan=\"14\">{}: {more} more connections</td></tr>",
                Text(&path.path)
            )?;
        }
    }
    writeln!(out, "</tbody></table></div></details></section>")
}

fn write_direction(
    path: &PathView,
    connection: &ConnectionView,
    direction: Direction,
    out: &mut impl Write,
) -> io::Result<()> {
    let view = connection.directions.in_direction(direction);
    let way = match direction {
        Direction::ClientToServer => "client \u{2192} server",
        Direction::ServerToClient => "server \u{2192} client",
    };
    let attack = view.attack.as_ref();
    let source = match connection.mode_source {
        ModeSource::Handshake => "",
        ModeSource::Bytes => " (estimated)",
    };
    let state = match (connection.evicted, connection.partial) {
        (true, _) => " (dropped before its end)",
        (false, true) => " (opening not captured)",
        (false, false) => "",
    };
    let number = |of: fn(&Attack) -> usize| attack.map_or(String::new(), |attack| grouped(of(attack) as u64));
    writeln!(
        out,
        "<tr><td class=\"text\">{}</td><td>{}{state}</td><td class=\"text\">{}{source}</td><td class=\"text\">{way}</td><td>{}</td><td>{}</td>\
         <td>{}</td><td>{}</td><td>{}</td><td class=\"text\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
        Text(&path.path),
        connection.id,
        connection.mode,
        grouped(view.exposure.bytes),
        grouped(view.exposure.runs as u64),
        grouped(view.exposure.longest_run),
        share_read(view),
        view.correct_fraction.map_or(String::new(), percent),
        view.content,
        view.entropy_bits.map_or(String::new(), |bits| format!("{bits:.2}")),
        grouped(view.packets.count),
        number(|attack| attack.runs),
        number(|attack| attack.broken),
    )
}

/// The share of what crossed that was recovered: a lower bound where the capture lacks bytes.
fn share_read(view: &DirectionView) -> String {
    match view.captured_bytes < view.exposure.bytes {
        true if view.recovered_bytes == 0 => "\u{2013}".into(),
        true => format!("\u{2265} {}", percent(view.recovered_fraction)),
        false => percent(view.recovered_fraction),
    }
}

/// Text, escaped for HTML.
struct Text<'a>(&'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| match character {
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '&' => f.write_str("&amp;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            _ => write!(f, "{character}"),
        })
    }
}

/// Bytes as HTML text: unprintable ones as a dot, unknown ones as a box.
struct Bytes(Vec<Option<u8>>);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let characters = self.0.iter().map(|byte| match byte {
            Some(byte @ (b' '..=b'~' | b'\n')) => char::from(*byte),
            Some(_) => '\u{b7}',
            None => '\u{25a1}',
        });
        Text(&characters.collect::<String>()).fmt(f)
    }
}

fn percent(fraction: f64) -> String {
    format!("{:.1} %", 100.0 * fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_text_and_bytes_for_html() {
        assert_eq!(Text("<img src=\"x\">&'").to_string(), "&lt;img src=&quot;x&quot;&gt;&amp;&#39;");
        assert_eq!(Bytes(vec![Some(b'<'), Some(0), None, Some(b'a')]).to_string(), "&lt;\u{b7}\u{25a1}a");
    }
}
