//! The inputs in `corpus/`: seeds are what their generators make, and everything passes its target's check.

use std::fs;
use std::path::{Path, PathBuf};

fn directory(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// Compares the seed with its file, or writes it where `PLAIT_BLESS` is set.
pub(crate) fn seed(target: &str, name: &str, bytes: &[u8]) {
    let path = directory(target).join(format!("seed-{name}"));
    if std::env::var_os("PLAIT_BLESS").is_some() {
        fs::create_dir_all(directory(target)).expect("a writable checkout");
        fs::write(&path, bytes).expect("a writable checkout");
    }
    let committed = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(committed, bytes, "{} is not what its generator makes", path.display());
}

/// Runs the check over all inputs of the target.
pub(crate) fn replay(target: &str, check: impl Fn(&[u8])) {
    let mut replayed = 0;
    for entry in fs::read_dir(directory(target)).expect("a corpus") {
        let path = entry.expect("a corpus").path();
        println!("{}", path.display());
        check(&fs::read(&path).expect("a readable input"));
        replayed += 1;
    }
    assert!(replayed > 0);
}
