//! Compares the arithmetic of the programs, and their decisions on real connections, with the model; simulates the
//! model.

mod arithmetic;
mod simulation;
mod traces;

use std::process::Command;

use bytemuck::{Pod, Zeroable};

use crate::Path;
use crate::bindings::{plait_calculation, plait_path, plait_step};

/// Whether this is root on a kernel that accepts the programs; if not, prints that the test is skipped.
fn can_run(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: congestion control by BPF requires root");
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
    let done = Command::new(words.next().expect("a command")).args(words).output().expect("command starts");
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
}

fn model_path(path: &plait_path) -> Path {
    Path { window: path.window.into(), rtt: path.rtt.into(), transmitted: path.transmitted as f64 }
}

/// The maximum error of an increase for one segment, in segments, as stated in docs/guide/congestion-control.md.
fn error_bound(paths: &[Path]) -> f64 {
    let inexact: f64 = paths.iter().map(|path| path.rtt / path.window).fold(0.0, f64::max);
    let w = paths.iter().map(|path| path.window).fold(f64::INFINITY, f64::min);
    (0.5f64.powi(28) + inexact * 0.5f64.powi(35)) / w + 0.5f64.powi(30)
}

macro_rules! plain {
    ($($name:ty),*) => {$(
        // SAFETY: integers only.
        unsafe impl Zeroable for $name {}
        // SAFETY: as above, and intf.h asserts that the size is the sum of the fields' sizes.
        unsafe impl Pod for $name {}
    )*};
}

plain!(plait_path, plait_step, plait_calculation);
