//! The document of the demo: real text that the machine already has, each paragraph once.
//!
//! Made-up or repeated text would flatter or spoil the count of readable shingles; licences, package documentation
//! and the texts of Perl, Python and C are what somebody wrote, and every Debian machine has some of them.

use std::collections::HashSet;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use sha2::{Digest as _, Sha256};

/// Prose first; the later directories are used only as far as the earlier ones do not suffice.
const SOURCES: [&str; 6] = [
    "/usr/share/common-licenses",
    "/usr/share/doc",
    "/usr/share/perl",
    "/usr/share/perl5",
    "/usr/lib/python3",
    "/usr/include",
];
/// Larger files are data, not text somebody wrote.
const LARGEST_FILE: u64 = 4 << 20;
/// A longer line is not meant for a reader.
const LONGEST_LINE: usize = 500;
/// Shorter paragraphs (`}`, `---`) repeat everywhere and say nothing.
const SHORTEST_PARAGRAPH: usize = 20;
/// The least text with which both paths are really used.
pub(super) const SMALLEST: u64 = 1_000_000;

/// A text and its SHA-256.
pub(super) struct Document {
    pub(super) text: Vec<u8>,
    pub(super) sha256: [u8; 32],
}

impl Document {
    /// At most `size` bytes of text from this machine; less if it has less, an error below 1 MB.
    pub(super) fn gather(size: u64) -> anyhow::Result<Self> {
        let size = usize::try_from(size).context("the document must fit into memory")?;
        let mut text = Vec::new();
        let mut seen = HashSet::new();
        'enough: for source in SOURCES {
            for file in files_below(Path::new(source)) {
                let Some(content) = read_text(&file) else { continue };
                for paragraph in content.split("\n\n").filter(|paragraph| seen.insert(fingerprint(paragraph)))
                {
                    if paragraph.trim().len() >= SHORTEST_PARAGRAPH {
                        text.extend_from_slice(paragraph.trim_matches('\n').as_bytes());
                        text.extend_from_slice(b"\n\n");
                    }
                }
                if text.len() >= size {
                    text.truncate(size);
                    break 'enough;
                }
            }
        }
        ensure!(
            text.len() as u64 >= SMALLEST,
            "the demo needs {SMALLEST} bytes of text and found {} in {}: install some packages with documentation \
             (apt-get install perl-doc)",
            text.len(),
            SOURCES.join(", ")
        );
        let sha256 = Sha256::digest(&text).into();
        Ok(Self { text, sha256 })
    }
}

/// All files below a directory in a fixed order, symbolic links left out: they would lead to the same text again.
fn files_below(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let mut waiting = vec![directory.to_owned()];
    std::iter::from_fn(move || {
        loop {
            let path = waiting.pop()?;
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            if metadata.is_dir() {
                let entries = fs::read_dir(&path).into_iter().flatten().flatten();
                let mut entries: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
                entries.sort_unstable_by(|a, b| b.cmp(a));
                waiting.append(&mut entries);
            } else if metadata.is_file() && metadata.len() <= LARGEST_FILE {
                return Some(path);
            }
        }
    })
}

fn read_text(file: &Path) -> Option<String> {
    let text = String::from_utf8(fs::read(file).ok()?).ok()?;
    (!text.contains('\0') && text.lines().all(|line| line.len() <= LONGEST_LINE)).then_some(text)
}

/// Equal for paragraphs that differ in spaces and line breaks only.
fn fingerprint(paragraph: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    paragraph.split_whitespace().for_each(|word| word.hash(&mut hasher));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_in_order_and_without_links() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("b")).expect("a directory");
        for name in ["c", "b/2", "b/1", "a"] {
            fs::write(at(name), name).expect("a file");
        }
        std::os::unix::fs::symlink(at("a"), at("b/link")).expect("a link");
        let found: Vec<_> = files_below(directory.path()).collect();
        assert_eq!(found, ["a", "b/1", "b/2", "c"].map(at));
    }

    #[test]
    fn only_text_is_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        let takes = |bytes: &[u8]| {
            fs::write(&file, bytes).expect("writes");
            read_text(&file).is_some()
        };
        assert!(takes(b"a text\nof two lines\n"));
        assert!(!takes(b"data\0data"));
        assert!(!takes(&[b'x'; LONGEST_LINE + 1]));
        assert!(!takes(b"\xff\xfe"));
    }

    #[test]
    fn spaces_do_not_make_a_new_paragraph() {
        assert_eq!(fingerprint("one  two\nthree"), fingerprint(" one two three\n"));
        assert_ne!(fingerprint("one two"), fingerprint("onetwo"));
    }
}
