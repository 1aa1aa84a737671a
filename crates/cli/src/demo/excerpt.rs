//! The same bytes of the document as captured in two runs: a hex dump of both side by side.

use std::cmp::Reverse;
use std::ops::Range;

/// The length of the excerpt in bytes.
pub(super) const LENGTH: usize = 96;
/// Bytes per row: two dumps of eight bytes fit into 80 columns.
const ROW: usize = 8;

/// The offset of an excerpt that a range of `a` and a range of `b` contain. Prefers starts of lines and text most like prose,
/// which is recognized at a glance. Ranges are sorted and disjoint.
pub(super) fn choose(document: &[u8], a: &[Range<usize>], b: &[Range<usize>]) -> Option<usize> {
    let common = intersect(a, b).into_iter().filter(|range| range.len() >= LENGTH);
    let offsets = common.flat_map(|range| {
        let last = range.end - LENGTH;
        let line_starts = (range.start + 1..=last).filter(|at| document.get(at - 1) == Some(&b'\n'));
        std::iter::once(range.start).chain(line_starts)
    });
    let scored = offsets.filter_map(|at| Some((prose_score(document.get(at..at + LENGTH)?), at)));
    scored.max_by_key(|(score, at)| (*score, Reverse(*at))).map(|(_, at)| at)
}

/// The number of lowercase letters and single spaces between words.
fn prose_score(text: &[u8]) -> usize {
    let spaces =
        text.windows(3).filter(|w| w[1] == b' ' && w[0].is_ascii_graphic() && w[2].is_ascii_lowercase());
    spaces.count() + text.iter().filter(|byte| byte.is_ascii_lowercase()).count()
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

/// Rows of offset, hex and characters of both, like `hexdump -C`.
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
    fn intersects_ranges() {
        let both = intersect(&[0..10, 20..30, 40..50], &[5..25, 29..45, 48..60]);
        assert_eq!(both, [5..10, 20..25, 29..30, 40..45, 48..50]);
        assert!(intersect(&[0..10, 20..30], &[10..20, 30..40]).is_empty());
    }

    #[test]
    fn chooses_prose_that_both_contain() {
        let mut document = vec![b'-'; 1000];
        document[400] = b'\n';
        document[401..500].fill(b'a');
        document[700] = b'\n';
        document[701..800].fill(b'a');
        let choose = |a: Range<usize>, b: Range<usize>| choose(&document, &[a, 2000..2001], &[b, 3000..3001]);
        assert_eq!(choose(0..650, 300..1000), Some(401), "at 701 only one run has it");
        assert_eq!(choose(0..200, 150..400), None, "50 common bytes are too few");
        assert_eq!(choose(0..2000, 950..2000), None, "ranges beyond the document");
    }

    #[test]
    fn prose_scores_words() {
        assert!(prose_score(b"some words of text") > prose_score(b"Some_Words(OF,Text)"));
        assert!(prose_score(b"some words of text") > prose_score(b"      text        "));
    }

    #[test]
    fn dump_fits_80_columns() {
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
