//! The same piece of the document as the listener has it in two runs, as a hex dump of both side by side.

use std::cmp::Reverse;
use std::ops::Range;

/// Bytes of the piece, and of one row of the dump: two dumps of eight bytes each fit into 80 columns.
pub(super) const LENGTH: usize = 96;
const ROW: usize = 8;

/// Where in the document a piece begins that lies wholly in a range of `a` and in one of `b`: of all such places at
/// the beginning of a line, the one most like prose, for that is recognised at a glance. Ranges are ordered and do not
/// overlap.
pub(super) fn choose(document: &[u8], a: &[Range<usize>], b: &[Range<usize>]) -> Option<usize> {
    let common = intersect(a, b).into_iter().filter(|range| range.len() >= LENGTH);
    let places = common.flat_map(|range| {
        let last = range.end - LENGTH;
        let line_starts = (range.start + 1..=last).filter(|at| document.get(at - 1) == Some(&b'\n'));
        std::iter::once(range.start).chain(line_starts)
    });
    let scored = places.filter_map(|at| Some((prose(document.get(at..at + LENGTH)?), at)));
    scored.max_by_key(|(score, at)| (*score, Reverse(*at))).map(|(_, at)| at)
}

/// How many bytes are small letters, or single spaces between words.
fn prose(piece: &[u8]) -> usize {
    let spaces =
        piece.windows(3).filter(|w| w[1] == b' ' && w[0].is_ascii_graphic() && w[2].is_ascii_lowercase());
    spaces.count() + piece.iter().filter(|byte| byte.is_ascii_lowercase()).count()
}

fn intersect(a: &[Range<usize>], b: &[Range<usize>]) -> Vec<Range<usize>> {
    let (mut i, mut j) = (0, 0);
    let mut common = Vec::new();
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        let both = x.start.max(y.start)..x.end.min(y.end);
        if !both.is_empty() {
            common.push(both);
        }
        if x.end <= y.end { i += 1 } else { j += 1 }
    }
    common
}

/// Rows of offset, hex and characters of both, in the form `hexdump -C` made common.
pub(super) fn dump(offset: usize, left: &[u8], right: &[u8]) -> Vec<String> {
    let rows = left.chunks(ROW).zip(right.chunks(ROW)).enumerate();
    rows.map(|(n, (left, right))| format!("{:08x}  {}  {}", offset + n * ROW, cell(left), cell(right)))
        .collect()
}

fn cell(bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x} ")).collect();
    let printable =
        |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' };
    let characters: String = bytes.iter().map(printable).collect();
    format!("{hex:<width$}{characters:<ROW$}", width = 3 * ROW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_meet_where_both_are() {
        let both = intersect(&[0..10, 20..30, 40..50], &[5..25, 29..45, 48..60]);
        assert_eq!(both, [5..10, 20..25, 29..30, 40..45, 48..50]);
        assert!(intersect(&[0..10, 20..30], &[10..20, 30..40]).is_empty());
    }

    #[test]
    fn the_piece_lies_in_both_and_is_prose() {
        let mut document = vec![b'-'; 1000];
        document[400] = b'\n';
        document[401..500].fill(b'a');
        document[700] = b'\n';
        document[701..800].fill(b'a');
        let choose = |a: Range<usize>, b: Range<usize>| choose(&document, &[a, 2000..2001], &[b, 3000..3001]);
        assert_eq!(choose(0..650, 300..1000), Some(401), "at 701 only one listener has it");
        assert_eq!(choose(0..200, 150..400), None, "50 common bytes are too few");
        assert_eq!(choose(0..2000, 950..2000), None, "ranges beyond the document");
    }

    #[test]
    fn prose_is_words() {
        assert!(prose(b"some words of text") > prose(b"Some_Words(OF,Text)"));
        assert!(prose(b"some words of text") > prose(b"      text        "));
    }

    #[test]
    fn a_dump_shows_both_and_fits_a_terminal() {
        let rows = dump(0x1230, b"plain text", b"\x00\x01\x02\x7f~!\xff\n__");
        assert_eq!(
            rows,
            [
                "00001230  70 6c 61 69 6e 20 74 65 plain te  00 01 02 7f 7e 21 ff 0a ....~!..",
                "00001238  78 74                   xt        5f 5f                   __      ",
            ]
        );
        assert!(rows.iter().all(|row| row.len() <= 80));
    }
}
