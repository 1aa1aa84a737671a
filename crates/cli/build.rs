//! Finds out what `plait version` prints.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=PLAIT_COMMIT");
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let rustc = env::var("RUSTC").expect("cargo sets RUSTC");
    export("PLAIT_RUSTC", first_line(Command::new(rustc).arg("--version")));
    export("PLAIT_TARGET", env::var("TARGET").ok());
    // Debug builds name no commit, so that they are not compiled anew for each.
    let from_git = env::var("PROFILE").is_ok_and(|profile| profile != "debug");
    if from_git
        && let Some(log) =
            git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| Path::new(log).exists())
    {
        println!("cargo:rerun-if-changed={log}");
    }
    let of_git = |arguments: &[&str]| from_git.then(|| git(arguments)).flatten();
    let commit = env::var("PLAIT_COMMIT").ok().or_else(|| of_git(&["rev-parse", "HEAD"]));
    export("PLAIT_COMMIT", commit);
    let epoch = env::var("SOURCE_DATE_EPOCH").ok().or_else(|| of_git(&["log", "-1", "--format=%ct"]));
    export("PLAIT_EPOCH", epoch);
}

fn export(name: &str, value: Option<String>) {
    if let Some(value) = value {
        println!("cargo:rustc-env={name}={value}");
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    first_line(Command::new("git").args(arguments))
}

fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()?.lines().next().map(str::to_owned)
}
