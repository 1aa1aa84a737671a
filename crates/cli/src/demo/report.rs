//! What the demo found, for a person: whether it is what should be shown, as a table, and in a few plain sentences.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use plait_config::grouped;
use plait_proto::option::Mode;
use plait_wire::Role;

use super::document::Document;
use super::judge::{JudgedPath, JudgedRun};
use super::piece;

/// Above this share of readable text the plain run shows that the listener really reads along.
const READABLE_OFF_LEAST: f64 = 0.2;
/// Below this share the protected run shows that he does not.
const READABLE_PROTECTED_MOST: f64 = 0.005;

const BOLD: Style = Style::new().bold();
const BAD: Style = AnsiColor::Red.on_default();
const GOOD: Style = AnsiColor::Green.on_default();

/// What all runs showed.
pub(super) struct Report<'a> {
    document: &'a Document,
    runs: &'a [JudgedRun],
    listing: Option<Listing>,
}

/// The same piece of the document as the listener has it in the plain and in the scrambled run.
struct Listing {
    offset: usize,
    off_is_the_text: bool,
    rows: Vec<String>,
}

impl<'a> Report<'a> {
    pub(super) fn new(document: &'a Document, runs: &'a [JudgedRun]) -> Self {
        Self { document, runs, listing: Listing::new(document, runs) }
    }

    /// What did not come out as it must, in words; empty if the demo showed what it should.
    pub(super) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for run in self.runs {
            let mode = run.mode;
            let mut demand = |holds: bool, otherwise: String| {
                if !holds {
                    failures.push(format!("{mode}: {otherwise}"));
                }
            };
            demand(run.sha256_ok, "the received file is not the document (SHA-256 differs)".into());
            demand(
                run.first_payload_after_data_ack,
                "a path other than the trusted one carried data before the first flight was acknowledged"
                    .into(),
            );
            for path in untrusted(run) {
                let (name, readable) = (&path.name, path.readable_fraction);
                demand(path.exposure.fraction > 0.0, format!("{name} was not used"));
                match run.mode {
                    Mode::Off => demand(
                        readable > READABLE_OFF_LEAST,
                        format!(
                            "{name} shows {readable:.4} of the text, expected above {READABLE_OFF_LEAST}"
                        ),
                    ),
                    Mode::Xor64 | Mode::Stream | Mode::Sealed => demand(
                        readable < READABLE_PROTECTED_MOST,
                        format!(
                            "{name} shows {readable:.4} of the text, expected below {READABLE_PROTECTED_MOST}"
                        ),
                    ),
                }
            }
        }
        match &self.listing {
            None => {
                failures.push(format!("no {} bytes of the text crossed wlan in both runs", piece::LENGTH))
            }
            Some(listing) if !listing.off_is_the_text => {
                failures.push("off: what was captured on wlan is not the text at that place".into());
            }
            Some(_) => {}
        }
        failures
    }

    /// The report for a person, with colours.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self
            .write_table(&mut text)
            .and_then(|()| self.write_listing(&mut text))
            .and_then(|()| self.write_words(&mut text));
        text
    }

    fn write_table(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "A text of {} bytes, fetched by curl from nginx over two paths.\n",
            grouped(self.document.text.len() as u64)
        )?;
        writeln!(
            out,
            "{BOLD}{:<6} {:>10}  {:<5} {:<10} {:>9} {:>13} {:>6} {:>9}{BOLD:#}",
            "mode", "throughput", "path", "role", "crossed", "longest run", "runs", "readable"
        )?;
        for run in self.runs {
            let (mut mode, mut throughput) =
                (run.mode.to_string(), format!("{:.1} Mb/s", run.throughput_mbps()));
            for path in &run.paths {
                let readable = path.readable_fraction;
                let style = match path.role {
                    Role::Trusted => Style::new(),
                    Role::Untrusted if readable < READABLE_PROTECTED_MOST => GOOD,
                    Role::Untrusted => BAD,
                };
                writeln!(
                    out,
                    "{mode:<6} {throughput:>10}  {:<5} {:<10} {:>7.2} % {:>11} B {:>6} {style}{:>7.2} %{style:#}",
                    path.name,
                    path.role,
                    100.0 * path.exposure.fraction,
                    grouped(path.exposure.longest_run),
                    path.exposure.runs,
                    100.0 * readable,
                )?;
                (mode, throughput) = (String::new(), String::new());
            }
        }
        writeln!(
            out,
            "\ncrossed: the share of the server's bytes that crossed the path, in how many runs, and the longest of them.\n\
             readable: the share of the text's 16-byte pieces that stand readable in what was captured there.\n\
             The listener is a tcpdump on wlan. The one on eth is the judge, who must see both paths, not a listener."
        )
    }

    fn write_listing(&self, out: &mut String) -> std::fmt::Result {
        let Some(listing) = &self.listing else { return Ok(()) };
        writeln!(
            out,
            "\nThe same {} bytes of the text, from byte {} on, as the listener on the untrusted path has them:\n",
            piece::LENGTH,
            grouped(listing.offset as u64)
        )?;
        let [off, xor64] = [Mode::Off, Mode::Xor64].map(|mode| mode.to_string());
        writeln!(out, "{BOLD}{:<8}  {off:<32}  {xor64}{BOLD:#}", "offset")?;
        listing.rows.iter().try_for_each(|row| writeln!(out, "{row}"))
    }

    fn write_words(&self, out: &mut String) -> std::fmt::Result {
        if self.runs.iter().all(|run| run.sha256_ok) {
            writeln!(out, "\nIn every run curl received the text byte for byte (SHA-256).")?;
        }
        writeln!(
            out,
            "\n{BOLD}xor64 is obfuscation, not secrecy.{BOLD:#} It keeps a casual listener from reading along. Who wants \
             to read\nundoes it without any key: some 130 captured bytes of English in a row are enough. {BOLD}stream\
             {BOLD:#} is secret from\neverybody who does not listen on the trusted path, and does not notice changes. {BOLD}sealed\
             {BOLD:#} is secret, and notices\nchanges, unless somebody is active on every path."
        )
    }
}

impl Listing {
    fn new(document: &Document, runs: &[JudgedRun]) -> Option<Self> {
        let of = |mode| untrusted(runs.iter().find(|run| run.mode == mode)?).next();
        let (off, xor64) = (of(Mode::Off)?, of(Mode::Xor64)?);
        let offset = piece::choose(&document.text, &off.ranges(), &xor64.ranges())?;
        let range = offset..offset + piece::LENGTH;
        let (off, xor64) = (off.bytes(range.clone())?, xor64.bytes(range.clone())?);
        let off_is_the_text = document.text.get(range) == Some(&off);
        Some(Self { offset, off_is_the_text, rows: piece::dump(offset, &off, &xor64) })
    }
}

fn untrusted(run: &JudgedRun) -> impl Iterator<Item = &JudgedPath> {
    run.paths.iter().filter(|path| path.role == Role::Untrusted)
}
