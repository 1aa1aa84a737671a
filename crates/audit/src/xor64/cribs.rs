//! What streams and files are known to contain: enough of it undoes `xor64` without a language.

use super::chain::{Chain, Keys, LAG};

/// How many bytes beyond the 65 that solve a run must agree before a known text is believed: by chance 2^-80.
const PROOF: usize = 10;

/// How many equal wire bytes in a row show a stretch of one and the same byte.
const STRETCH: usize = LAG + 1;

/// How many bytes at the beginning must agree before the rest of a known beginning is believed.
const AGREE: usize = 6;

/// A text that is found, and the unknown bytes that it gives.
pub(super) struct Found {
    pub(super) what: &'static str,
    pub(super) keys: Keys,
}

/// Texts longer than [`LAG`] that appear in many files as they are.
const ANYWHERE: [(&str, &[u8]); 4] = [
    ("Huffman tables of JPEG", JPEG_TABLES),
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

/// The tables for luminance that nearly all encoders write (ITU-T T.81, tables K.3 and K.5), as two DHT segments.
const JPEG_TABLES: &[u8] = &[
    0xff, 0xc4, 0x00, 0x1f, 0x00, 0x00, 0x01, 0x05, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0xff,
    0xc4, 0x00, 0xb5, 0x10, 0x00, 0x02, 0x01, 0x03, 0x03, 0x02, 0x04, 0x03, 0x05, 0x05, 0x04, 0x04, 0x00,
    0x00, 0x01, 0x7d, 0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51,
    0x61, 0x07, 0x22, 0x71, 0x14, 0x32, 0x81, 0x91, 0xa1, 0x08, 0x23, 0x42, 0xb1, 0xc1, 0x15, 0x52, 0xd1,
    0xf0, 0x24, 0x33, 0x62, 0x72, 0x82,
];

/// How files and protocols begin. Where there are several versions, the usual ones.
const BEGINNINGS: [(&str, &[u8]); 14] = [
    ("HTTP response", b"HTTP/1.1 200 OK\r\n"),
    ("HTTP response by nginx", b"HTTP/1.1 200 OK\r\nServer: nginx/"),
    ("HTTP response by Apache", b"HTTP/1.1 200 OK\r\nDate: "),
    ("HTTP request", b"GET / HTTP/1.1\r\nHost: "),
    ("SSH", b"SSH-2.0-OpenSSH_"),
    ("TLS client hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    ("PNG", b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR\x00\x00"),
    ("JPEG", b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01"),
    ("PDF", b"%PDF-1."),
    ("ZIP", b"PK\x03\x04\x14\x00\x00\x00\x08\x00"),
    ("gzip", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"),
    ("ELF", b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x00\x3e\x00\x01\x00\x00\x00"),
    ("XML", b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"),
    ("HTML", b"<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n"),
];

/// Looks for long known texts anywhere in a run.
pub(super) fn anywhere(wire: &[u8], chain: &Chain) -> Option<Found> {
    stretch(wire, chain).or_else(|| ANYWHERE.iter().find_map(|(what, text)| long_text(what, text, chain)))
}

/// A stretch of one byte: 65 equal bytes have their own value as their sum.
fn stretch(wire: &[u8], chain: &Chain) -> Option<Found> {
    let start = wire.windows(STRETCH).position(|window| window.iter().all(|byte| *byte == window[0]))?;
    // The first wire byte is the sum of the plaintext byte under it and the 64 before, which begin at `start`.
    let keys = chain.keys_from(start, [wire[start]; LAG]);
    Some(Found { what: "a stretch of one byte", keys })
}

fn long_text(what: &'static str, text: &[u8], chain: &Chain) -> Option<Found> {
    let content = chain.content();
    let last = content.end.checked_sub(LAG + PROOF)?;
    let agrees = |from: usize| {
        let ends = text.iter().zip(&text[LAG..]).take(content.end.saturating_sub(from + LAG));
        let mut compared = 0;
        let all = ends.enumerate().all(|(at, (older, newer))| {
            compared += 1;
            older ^ newer == chain.link(from + at) ^ chain.link(from + at + LAG)
        });
        all && compared >= PROOF
    };
    let from = (content.start..=last).find(|from| agrees(*from))?;
    Some(Found { what, keys: chain.keys_from(from, text.iter().copied()) })
}

/// Compares what is known of a stream's first bytes with the [`BEGINNINGS`]; `at` is the place of the first byte.
/// Gives what was known and what the beginning adds to it.
pub(super) fn beginning(chain: &Chain, at: usize, known: &Keys) -> Option<Found> {
    let mut best: Option<(usize, Found)> = None;
    for (what, text) in BEGINNINGS {
        let mut keys = *known;
        let mut agree = 0;
        let fits = text.iter().zip(at..chain.content().end).all(|(byte, t)| {
            let key = byte ^ chain.link(t);
            agree += usize::from(known[t % LAG] == Some(key));
            *keys[t % LAG].get_or_insert(key) == key
        });
        if fits && agree >= AGREE && best.as_ref().is_none_or(|(most, _)| agree > *most) {
            chain.complete(&mut keys);
            best = Some((agree, Found { what, keys }));
        }
    }
    best.map(|(_, found)| found)
}
