//! Cribs: known contents of streams and files. Enough of it breaks `xor64` without language statistics.

use super::run::{ClassKeys, LAG, WireRun};

/// How many bytes beyond the 65 that solve a run must match for a crib to be accepted. By chance: 2^-80.
const MIN_MATCHING: usize = 10;

/// How many equal wire bytes in a row reveal a repeated plaintext byte.
const MIN_REPEATED: usize = LAG + 1;

/// How many bytes at the start of a stream must match for the rest of a signature to be accepted.
const MIN_SIGNATURE_MATCHING: usize = 6;

/// A crib that was found, and the unknown bytes that follow from it.
pub(super) struct Found {
    pub(super) name: &'static str,
    pub(super) keys: ClassKeys,
}

/// Texts longer than [`LAG`] that occur verbatim in many files.
const LONG_CRIBS: [(&str, &[u8]); 4] = [
    ("JPEG Huffman tables", JPEG_TABLES),
    (
        "XHTML 1.0 doctype",
        b"<!DOCTYPE html PUBLIC \"-//W3C//DTD XHTML 1.0 Strict//EN\" \"http://www.w3.org/TR/xhtml1/DTD/xhtml1-strict.dtd\">",
    ),
    (
        "XHTML 1.0 doctype",
        b"<!DOCTYPE html PUBLIC \"-//W3C//DTD XHTML 1.0 Transitional//EN\" \"http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd\">",
    ),
    (
        "HTML 4.01 doctype",
        b"<!DOCTYPE HTML PUBLIC \"-//W3C//DTD HTML 4.01 Transitional//EN\" \"http://www.w3.org/TR/html4/loose.dtd\">",
    ),
];

/// The luminance tables that nearly all encoders write (ITU-T T.81, tables K.3 and K.5), as two DHT segments.
const JPEG_TABLES: &[u8] = &[
    0xff, 0xc4, 0x00, 0x1f, 0x00, 0x00, 0x01, 0x05, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0xff,
    0xc4, 0x00, 0xb5, 0x10, 0x00, 0x02, 0x01, 0x03, 0x03, 0x02, 0x04, 0x03, 0x05, 0x05, 0x04, 0x04, 0x00,
    0x00, 0x01, 0x7d, 0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51,
    0x61, 0x07, 0x22, 0x71, 0x14, 0x32, 0x81, 0x91, 0xa1, 0x08, 0x23, 0x42, 0xb1, 0xc1, 0x15, 0x52, 0xd1,
    0xf0, 0x24, 0x33, 0x62, 0x72, 0x82,
];

/// The first bytes of common files and protocols, in their usual versions.
const SIGNATURES: [(&str, &[u8]); 14] = [
    ("HTTP response", b"HTTP/1.1 200 OK\r\n"),
    ("HTTP response by nginx", b"HTTP/1.1 200 OK\r\nServer: nginx/"),
    ("HTTP response by Apache", b"HTTP/1.1 200 OK\r\nDate: "),
    ("HTTP request", b"GET / HTTP/1.1\r\nHost: "),
    ("SSH", b"SSH-2.0-OpenSSH_"),
    ("TLS ClientHello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    ("PNG", b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR\x00\x00"),
    ("JPEG", b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01"),
    ("PDF", b"%PDF-1."),
    ("ZIP", b"PK\x03\x04\x14\x00\x00\x00\x08\x00"),
    ("gzip", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"),
    ("ELF", b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x00\x3e\x00\x01\x00\x00\x00"),
    ("XML", b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"),
    ("HTML", b"<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n"),
];

/// Searches for long cribs anywhere in a run.
pub(super) fn anywhere(wire: &[u8], run: &WireRun) -> Option<Found> {
    repeated_byte(wire, run).or_else(|| LONG_CRIBS.iter().find_map(|(name, text)| long_crib(name, text, run)))
}

/// A repeated byte: the XOR of 65 equal bytes is that byte.
fn repeated_byte(wire: &[u8], run: &WireRun) -> Option<Found> {
    let start = wire.windows(MIN_REPEATED).position(|window| window.iter().all(|byte| *byte == window[0]))?;
    // The first wire byte is the sum of its plaintext byte and the 64 before it, which begin at `start`.
    let keys = run.keys_from(start, [wire[start]; LAG]);
    Some(Found { name: "repeated byte", keys })
}

fn long_crib(name: &'static str, text: &[u8], run: &WireRun) -> Option<Found> {
    let content = run.content();
    let last = content.end.checked_sub(LAG + MIN_MATCHING)?;
    let agrees = |from: usize| {
        let ends = text.iter().zip(&text[LAG..]).take(content.end.saturating_sub(from + LAG));
        let mut compared = 0;
        let all = ends.enumerate().all(|(at, (older, newer))| {
            compared += 1;
            older ^ newer == run.delta(from + at) ^ run.delta(from + at + LAG)
        });
        all && compared >= MIN_MATCHING
    };
    let from = (content.start..=last).find(|from| agrees(*from))?;
    Some(Found { name, keys: run.keys_from(from, text.iter().copied()) })
}

/// Compares the known first bytes of a stream with the [`SIGNATURES`]; `at` is the index of the first byte. Returns the
/// known bytes and those that the best matching signature adds.
pub(super) fn signature(run: &WireRun, at: usize, known: &ClassKeys) -> Option<Found> {
    let mut best: Option<(usize, Found)> = None;
    for (name, text) in SIGNATURES {
        let mut keys = *known;
        let mut matching = 0;
        let fits = text.iter().zip(at..run.content().end).all(|(byte, t)| {
            let key = byte ^ run.delta(t);
            matching += usize::from(known[t % LAG] == Some(key));
            *keys[t % LAG].get_or_insert(key) == key
        });
        if fits
            && matching >= MIN_SIGNATURE_MATCHING
            && best.as_ref().is_none_or(|(best, _)| matching > *best)
        {
            run.complete(&mut keys);
            best = Some((matching, Found { name, keys }));
        }
    }
    best.map(|(_, found)| found)
}
