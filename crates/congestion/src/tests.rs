//! The programs against the model: their arithmetic, and their decisions on real connections.

mod arithmetic;
mod traces;

use std::process::Command;

use crate::Path;
use crate::bindings::plait_path;

/// Says that a test is skipped without root or a kernel that takes the programs.
fn can_run(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: congestion control by BPF takes root");
        return false;
    }
    match crate::probe() {
        Ok(()) => true,
        Err(error) => {
            println!("SKIP {test}: {error}");
            false
        }
    }
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let done = Command::new(words.next().expect("a command")).args(words).output().expect("it runs");
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
}

fn path(seen: &plait_path) -> Path {
    Path { window: seen.window.into(), rtt: seen.rtt.into(), transmitted: seen.transmitted as f64 }
}

/// How far an increase for one segment may be from the model's, in segments: what docs/guide/congestion-control.md says.
fn bound(paths: &[Path]) -> f64 {
    let inexact: f64 = paths.iter().map(|path| path.rtt / path.window).fold(0.0, f64::max);
    let w = paths.iter().map(|path| path.window).fold(f64::INFINITY, f64::min);
    (0.5f64.powi(28) + inexact * 0.5f64.powi(35)) / w + 0.5f64.powi(30)
}
