//! `plait lab exec` and `plait lab shell`: a program on a host of a lab.
//!
//! This process enters the host's network and becomes the program, so its standard streams, signals and exit status are
//! the program's own.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use plait_linux::netns::{self, NetNs};

use super::control::Running;

/// Run a program on a host of a lab
#[derive(Debug, clap::Args)]
pub(crate) struct ExecArgs {
    /// The lab, if several are up
    #[arg(long, value_name = "ID")]
    lab: Option<String>,
    /// The host
    host: String,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Open a shell on a host of a lab
#[derive(Debug, clap::Args)]
pub(crate) struct ShellArgs {
    /// The lab, if several are up
    #[arg(long, value_name = "ID")]
    lab: Option<String>,
    /// The host
    host: String,
}

/// Does not return if the program could be started.
pub(crate) fn exec(args: &ExecArgs) -> anyhow::Result<ExitCode> {
    enter(&Running::find(args.lab.as_deref())?, &args.host)?;
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    become_program(command)
}

/// Does not return if the shell could be started.
pub(crate) fn shell(args: &ShellArgs) -> anyhow::Result<ExitCode> {
    let lab = Running::find(args.lab.as_deref())?;
    enter(&lab, &args.host)?;
    let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or("/bin/sh".into());
    let mut command = Command::new(&shell);
    if Path::new(&shell).file_name().is_some_and(|name| name == "bash") {
        // ~/.bashrc may set the prompt, so it is set again afterwards.
        let start = lab.directory.join(format!("bashrc-{}", args.host));
        let lines = format!("[ -f ~/.bashrc ] && . ~/.bashrc\nPS1=\"[{}] $PS1\"\n", args.host);
        fs::write(&start, lines).with_context(|| format!("cannot write {}", start.display()))?;
        command.arg("--rcfile").arg(start);
    }
    command.env("PS1", format!("[{}] # ", args.host));
    become_program(command)
}

fn enter(lab: &Running, host: &str) -> anyhow::Result<()> {
    let prefix = format!("plait-{}-", lab.id);
    let names = netns::list()?;
    let mut hosts: Vec<_> = names.iter().filter_map(|name| name.strip_prefix(&prefix)).collect();
    hosts.sort_unstable();
    if !hosts.contains(&host) {
        bail!("expected one of the hosts {} of lab {}, got {host:?}", hosts.join(", "), lab.id);
    }
    Ok(NetNs::named(&format!("{prefix}{host}"))?.enter()?)
}

fn become_program(mut command: Command) -> anyhow::Result<ExitCode> {
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))
}
