//! `plait version`: what this program was built from.

use std::io::Write as _;

use serde::Serialize;

use crate::stdout::{Stdout, print_json};

/// Arguments of `plait version`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a program was built from.
#[derive(Serialize)]
pub(crate) struct Version {
    pub(crate) version: &'static str,
    /// The commit that was checked out; `None` if unknown, as in debug builds.
    pub(crate) commit: Option<&'static str>,
    /// The commit's time, or `SOURCE_DATE_EPOCH` when it was built.
    pub(crate) date: Option<String>,
    pub(crate) target: &'static str,
    pub(crate) rustc: &'static str,
    /// The oldest Linux with which connections can be protected.
    pub(crate) linux: &'static str,
}

impl Version {
    /// Of this program, as its build script found them out.
    pub(crate) fn of_this_program() -> Version {
        let epoch = option_env!("PLAIT_EPOCH").and_then(|seconds| seconds.parse().ok());
        let date = epoch.and_then(|seconds| chrono::DateTime::from_timestamp(seconds, 0));
        Version {
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("PLAIT_COMMIT"),
            date: date.map(|date| date.format("%Y-%m-%dT%H:%M:%SZ").to_string()),
            target: env!("PLAIT_TARGET"),
            rustc: env!("PLAIT_RUSTC"),
            linux: "5.19",
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let version = Version::of_this_program();
    if args.json {
        return print_json(&version);
    }
    let mut out = Stdout::new();
    writeln!(out, "plait {}", version.version)?;
    writeln!(out, "commit: {}", version.commit.unwrap_or("unknown"))?;
    writeln!(out, "date: {}", version.date.as_deref().unwrap_or("unknown"))?;
    writeln!(out, "target: {}, {}", version.target, version.rustc)?;
    writeln!(out, "requires Linux {} or later; `plait doctor` checks this host", version.linux)?;
    Ok(out.flush()?)
}
