//! The report of the demo: table, excerpt, explanation, and whether the result is as expected.

use std::fmt::Write as _;

use anstyle::Style;
use plait_config::{Role, grouped};
use plait_proto::option::Mode;

use super::analysis::{PathResult, Run};
use super::document::Document;
use super::excerpt;
use crate::stdout::{BAD, BOLD, GOOD, StyledText};

/// Without protection, the readable share must be above this.
const MIN_READABLE_OFF: f64 = 0.2;
/// With protection, the readable share must be below this.
const MAX_READABLE_PROTECTED: f64 = 0.005;

/// The result of all runs.
pub(super) struct Report<'a> {
    document: &'a Document,
    runs: &'a [Run],
    excerpt: Option<Excerpt>,
}

/// The same bytes of the document as captured on the untrusted path without protection and with `xor64`.
struct Excerpt {
    offset: usize,
    off_is_plaintext: bool,
    rows: Vec<String>,
}

impl<'a> Report<'a> {
    pub(super) fn new(document: &'a Document, runs: &'a [Run]) -> Self {
        Self { document, runs, excerpt: Excerpt::new(document, runs) }
    }

    /// The expectations that were not met; empty on success.
    pub(super) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for run in self.runs {
            let mode = run.mode;
            let mut expect = |met: bool, otherwise: String| {
                if !met {
                    failures.push(format!("{mode}: {otherwise}"));
                }
            };
            expect(run.sha256_ok, "the received file is not the document (SHA-256 differs)".into());
            expect(
                run.first_payload_after_data_ack,
                "a path other than the trusted one carried data before the first flight was acknowledged"
                    .into(),
            );
            for path in untrusted(run) {
                let (name, readable) = (&path.name, path.readable_fraction);
                expect(path.exposure.fraction > 0.0, format!("{name} was not used"));
                match run.mode {
                    Mode::Off => expect(
                        readable > MIN_READABLE_OFF,
                        format!(
                            "expected more than {MIN_READABLE_OFF} of the text readable on {name}, got {readable:.4}"
                        ),
                    ),
                    Mode::Xor64 | Mode::Stream | Mode::Sealed => expect(
                        readable < MAX_READABLE_PROTECTED,
                        format!(
                            "expected less than {MAX_READABLE_PROTECTED} of the text readable on {name}, got {readable:.4}"
                        ),
                    ),
                }
            }
        }
        match &self.excerpt {
            None => failures.push(format!(
                "expected {} bytes of the text that crossed wlan in both runs, got none",
                excerpt::LENGTH
            )),
            Some(excerpt) if !excerpt.off_is_plaintext => {
                failures.push("off: the bytes captured on wlan differ from the text".into());
            }
            Some(_) => {}
        }
        failures
    }

    /// The report as text with colours.
    pub(super) fn text(&self) -> StyledText {
        let mut text = StyledText::default();
        // Writing to it cannot fail.
        let _ = self
            .write_table(&mut text)
            .and_then(|()| self.write_excerpt(&mut text))
            .and_then(|()| self.write_explanation(&mut text));
        text
    }

    fn write_table(&self, out: &mut StyledText) -> std::fmt::Result {
        writeln!(
            out,
            "A text of {} bytes, fetched by curl from nginx over two paths.\n",
            grouped(self.document.text.len() as u64)
        )?;
        let heading = format!(
            "{:<6} {:>10}  {:<5} {:<10} {:>9} {:>13} {:>6} {:>9}\n",
            "mode", "throughput", "path", "role", "crossed", "longest run", "runs", "readable"
        );
        out.push(BOLD, heading);
        for run in self.runs {
            let (mut mode, mut throughput) =
                (run.mode.to_string(), format!("{:.1} Mb/s", run.throughput_mbps));
            for path in &run.paths {
                let readable = path.readable_fraction;
                let style = match path.role {
                    Role::Trusted => Style::new(),
                    Role::Untrusted if readable < MAX_READABLE_PROTECTED => GOOD,
                    Role::Untrusted => BAD,
                };
                write!(
                    out,
                    "{mode:<6} {throughput:>10}  {:<5} {:<10} {:>7.2} % {:>11} B {:>6} ",
                    path.name,
                    path.role,
                    100.0 * path.exposure.fraction,
                    grouped(path.exposure.longest_run),
                    path.exposure.runs,
                )?;
                out.push(style, format_args!("{:>7.2} %", 100.0 * readable));
                writeln!(out)?;
                (mode, throughput) = (String::new(), String::new());
            }
        }
        writeln!(
            out,
            "\ncrossed: the share of the server's bytes that crossed the path, the longest contiguous run, and the number of runs.\n\
             readable: the share of the text's 16-byte pieces that are found as plaintext in the path's capture.\n\
             The eavesdropper is a tcpdump on wlan. The capture on eth serves to compute these figures."
        )
    }

    fn write_excerpt(&self, out: &mut StyledText) -> std::fmt::Result {
        let Some(excerpt) = &self.excerpt else { return Ok(()) };
        writeln!(
            out,
            "\nThe same {} bytes of the text, from byte {} on, as captured on the untrusted path:\n",
            excerpt::LENGTH,
            grouped(excerpt.offset as u64)
        )?;
        let [off, xor64] = [Mode::Off, Mode::Xor64].map(|mode| mode.to_string());
        out.push(BOLD, format_args!("{:<8}  {off:<32}  {xor64}\n", "offset"));
        excerpt.rows.iter().try_for_each(|row| writeln!(out, "{row}"))
    }

    fn write_explanation(&self, out: &mut StyledText) -> std::fmt::Result {
        if self.runs.iter().all(|run| run.sha256_ok) {
            writeln!(out, "\nIn every run curl received the text unchanged (SHA-256).")?;
        }
        out.push(BOLD, "\nxor64 is obfuscation, not secrecy.");
        write!(
            out,
            " It deters casual inspection; 130 captured bytes of English in a row suffice\nto recover the text without a key. "
        )?;
        out.push(BOLD, "stream");
        write!(out, " is confidential unless the trusted path was captured, and does not detect\nchanges. ")?;
        out.push(BOLD, "sealed");
        writeln!(out, " is confidential and detects changes, unless an attacker is active on every path.")
    }
}

impl Excerpt {
    fn new(document: &Document, runs: &[Run]) -> Option<Self> {
        let of = |mode| untrusted(runs.iter().find(|run| run.mode == mode)?).next();
        let (off, xor64) = (of(Mode::Off)?, of(Mode::Xor64)?);
        let offset = excerpt::choose(&document.text, &off.ranges(), &xor64.ranges())?;
        let range = offset..offset + excerpt::LENGTH;
        let (off, xor64) = (off.bytes(range.clone())?, xor64.bytes(range.clone())?);
        let off_is_plaintext = document.text.get(range) == Some(&off);
        Some(Self { offset, off_is_plaintext, rows: excerpt::dump(offset, &off, &xor64) })
    }
}

fn untrusted(run: &Run) -> impl Iterator<Item = &PathResult> {
    run.paths.iter().filter(|path| path.role == Role::Untrusted)
}
