//! The document of the demo: text that this machine already has, each paragraph once.
//!
//! Generated or repeated text would distort the share of readable text. Licences, package documentation and the sources of
//! Perl, Python and C are human-written, and every Debian machine has some.

use std::collections::HashSet;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use sha2::{Digest as _, Sha256};

/// Prose first; later directories are used only if the earlier ones do not suffice.
const SOURCES: [&str; 6] = [
    "/usr/share/common-licenses",
    "/usr/share/doc",
    "/usr/share/perl",
    "/usr/share/perl5",
    "/usr/lib/python3",
    "/usr/include",
];
/// Larger files are data, not human-written text.
const MAX_FILE: u64 = 4 << 20;
/// Longer lines are not meant to be read.
const MAX_LINE: usize = 500;
/// Shorter paragraphs (`}`, `---`) repeat everywhere.
const MIN_PARAGRAPH: usize = 20;
/// With less text, both paths might not be used.
pub(super) const MIN_SIZE: u64 = 1_000_000;

/// A text and its SHA-256.
pub(super) struct Document {
    pub(super) text: Vec<u8>,
    pub(super) sha256: [u8; 32],
}

impl Document {
    /// Collects `size` bytes of text, or less if this machine has less. Fails below [`MIN_SIZE`].
    pub(super) fn collect(size: u64) -> anyhow::Result<Self> {
        let size = usize::try_from(size).context("expected a size that fits into memory")?;
        let mut text = Vec::new();
        let mut seen = HashSet::new();
        'files: for source in SOURCES {
            for file in files_below(Path::new(source)) {
                let Some(content) = read_text(&file) else { continue };
                for paragraph in content.split("\n\n").filter(|paragraph| seen.insert(fingerprint(paragraph)))
                {
                    if paragraph.trim().len() >= MIN_PARAGRAPH {
                        text.extend_from_slice(paragraph.trim_matches('\n').as_bytes());
                        text.extend_from_slice(b"\n\n");
                    }
                }
                if text.len() >= size {
                    text.truncate(size);
                    break 'files;
                }
            }
        }
        ensure!(
            text.len() as u64 >= MIN_SIZE,
            "expected {MIN_SIZE} bytes of text, got {} from {}: install packages with documentation \
             (apt-get install perl-doc)",
            text.len(),
            SOURCES.join(", ")
        );
        let sha256 = Sha256::digest(&text).into();
        Ok(Self { text, sha256 })
    }
}

/// All files below a directory, in a fixed order, without symbolic links: they would yield the same text again.
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
            } else if metadata.is_file() && metadata.len() <= MAX_FILE {
                return Some(path);
            }
        }
    })
}

fn read_text(file: &Path) -> Option<String> {
    let text = String::from_utf8(fs::read(file).ok()?).ok()?;
    (!text.contains('\0') && text.lines().all(|line| line.len() <= MAX_LINE)).then_some(text)
}

/// Equal for paragraphs that differ in whitespace only.
fn fingerprint(paragraph: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    paragraph.split_whitespace().for_each(|word| word.hash(&mut hasher));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_files_in_order_without_links() {
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
    fn reads_text_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        let accepts = |bytes: &[u8]| {
            fs::write(&file, bytes).expect("writes");
            read_text(&file).is_some()
        };
        assert!(accepts(b"a text\nof two lines\n"));
        assert!(!accepts(b"data\0data"));
        assert!(!accepts(&[b'x'; MAX_LINE + 1]));
        assert!(!accepts(b"\xff\xfe"));
    }

    #[test]
    fn fingerprint_ignores_whitespace() {
        assert_eq!(fingerprint("one  two\nthree"), fingerprint(" one two three\n"));
        assert_ne!(fingerprint("one two"), fingerprint("onetwo"));
    }
}
