//! Decoding, by telescoping (4): `b[i] = b[i-65] + B[i] + B[i-1]`.
//!
//! The stream is laid out in rows of 65 bytes. A row of plaintext is then the row above it plus a row that depends only
//! on wire bytes, so that decoding is a running sum of rows, kept in registers:
//!
//! ```text
//! column      0                      1          2      ...     64
//! before      0                      b[-64]     b[-63]  ...    b[-1]             the window, newest last
//! row 0     + B[0] + B[-1]           B[1]+B[0]  B[2]+B[1] ...  B[64]+B[63]     = b[0]  b[1]  ... b[64]
//! row 1     + B[65] + B[64]          ...
//! ```
//!
//! The window has no byte for column 0 of the row before the stream. Any value is correct with a matching `B[-1]`,
//! because only their sum matters: by (1) with `i = -1`, `b[-65] + B[-1]` is the sum of the window, so `b[-65]` is set
//! to 0 and `B[-1]` to the sum of the window.
//!
//! Columns 1 to 64 are loops of 64 independent byte operations between arrays, which compilers turn into vector
//! instructions of any width up to 512 bits.

use super::{WINDOW, after};

/// One byte more than the window: the period of (4).
const ROW: usize = WINDOW + 1;

/// Decodes `buf` in place and advances the window.
///
/// Always inlined, so that it is compiled with the instruction set of the function that calls it.
#[inline(always)]
pub(super) fn decode(window: &mut [u8; WINDOW], buf: &mut [u8]) {
    let end = End::of(buf);
    let mut above = Above { first: 0, others: *window, wire: total(window) };
    let (rows, rest) = buf.as_chunks_mut::<ROW>();
    for row in rows {
        above.decode(row);
    }
    if rest.is_empty() {
        *window = above.others;
    } else if let Some(end) = end {
        *window = end.decode(buf);
    } else {
        let mut row = [0; ROW];
        row[..rest.len()].copy_from_slice(rest);
        above.decode(&mut row);
        rest.copy_from_slice(&row[..rest.len()]);
        *window = after(window, buf);
    }
}

/// The parts of a row that the next row needs.
struct Above {
    /// Plaintext, column 0.
    first: u8,
    /// Plaintext, columns 1 to 64.
    others: [u8; WINDOW],
    /// The last wire byte.
    wire: u8,
}

impl Above {
    #[inline(always)]
    fn decode(&mut self, row: &mut [u8; ROW]) {
        add(&mut self.others, row.last_chunk().expect("64 of 65"));
        add(&mut self.others, row.first_chunk().expect("64 of 65"));
        self.first ^= row[0] ^ self.wire;
        self.wire = row[ROW - 1];
        row[0] = self.first;
        row[1..].copy_from_slice(&self.others);
    }
}

/// The last 64 wire bytes of a buffer, and the same shifted by one byte.
///
/// A partial row at the end of the buffer would have to be copied out and back. It is cheaper to decode the last 64
/// bytes together, although the last full row has already decoded some of them; their wire form is saved here before
/// that row overwrites it.
struct End {
    wire: [u8; WINDOW],
    wire_before: [u8; WINDOW],
}

impl End {
    /// `None` if the buffer has fewer than 129 bytes: it must contain the 64 bytes that lie 65 before the last 64.
    #[inline(always)]
    fn of(buf: &[u8]) -> Option<Self> {
        if buf.len() < WINDOW + ROW {
            return None;
        }
        Some(Self { wire: *buf.last_chunk()?, wire_before: *buf[..buf.len() - 1].last_chunk()? })
    }

    /// Decodes the last 64 bytes of `buf`, whose full rows are already decoded, and returns them.
    #[inline(always)]
    fn decode(&self, buf: &mut [u8]) -> [u8; WINDOW] {
        let mut plain = *buf[..buf.len() - ROW].last_chunk().expect("`of` has measured it");
        add(&mut plain, &self.wire);
        add(&mut plain, &self.wire_before);
        *buf.last_chunk_mut().expect("`of` has measured it") = plain;
        plain
    }
}

#[inline(always)]
fn add(sum: &mut [u8; WINDOW], bytes: &[u8; WINDOW]) {
    for (sum, byte) in sum.iter_mut().zip(bytes) {
        *sum ^= byte;
    }
}

/// The sum of all bytes, by words, because compilers turn a loop over bytes into 64 single XORs.
#[inline(always)]
fn total(bytes: &[u8; WINDOW]) -> u8 {
    let (words, _) = bytes.as_chunks();
    let words = words.iter().fold(0, |sum, &word| sum ^ u64::from_ne_bytes(word));
    words.to_ne_bytes().iter().fold(0, |sum, byte| sum ^ byte)
}
