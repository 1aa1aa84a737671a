//! What every result says of the machine, and what both benchmarks share.

use std::fs;

use indicatif::{ProgressBar, ProgressStyle};

/// The model name of the processor.
pub(crate) fn cpu() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or_else(
        || format!("unnamed {} processor", std::env::consts::ARCH),
        |(_, name)| name.trim().to_owned(),
    )
}

/// The kernel's release, such as `6.12.1`.
pub(crate) fn kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// A progress bar on stderr, shown only on a terminal.
pub(crate) fn progress_bar(steps: u64) -> anyhow::Result<ProgressBar> {
    let style = ProgressStyle::with_template("{msg} [{bar:40}] {percent}%, {eta} left")?;
    Ok(ProgressBar::new(steps).with_style(style.progress_chars("=> ")))
}

/// The upper median of at least one value.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
