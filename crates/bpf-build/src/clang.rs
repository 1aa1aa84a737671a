//! Which clang compiles BPF programs, when plait is built and when it loads a user's program.
//!
//! Also part of `plait-linux`, which build scripts do not need.

use std::env;
use std::process::Command;

/// The oldest version whose BPF back end knows type tags for kernel pointers and reports no error for our programs.
const MIN_VERSION: u32 = 16;

/// The version that plait is tested with comes first; a plain `clang` may be older than required.
const NAMES: [&str; 8] =
    ["clang-19", "clang", "clang-22", "clang-21", "clang-20", "clang-18", "clang-17", "clang-16"];

/// The compiler named by `PLAIT_CLANG`, else the first that is installed and new enough, else the first of them all, which
/// names what is missing.
pub fn find() -> String {
    let installed =
        || NAMES.into_iter().find(|name| version(name).is_some_and(|version| version >= MIN_VERSION));
    env::var("PLAIT_CLANG").unwrap_or_else(|_| installed().unwrap_or(NAMES[0]).to_owned())
}

/// The major version of a compiler that can be run.
fn version(name: &str) -> Option<u32> {
    let output = Command::new(name).arg("-dumpversion").output().ok()?;
    String::from_utf8(output.stdout).ok()?.split('.').next()?.parse().ok()
}
