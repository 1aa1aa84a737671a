//! `plait run`: runs a program whose connections a gateway carries.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use plait_gateway::{Gateway, Outbound, RunError, exit_code};
use plait_linux::user::User;

use crate::gateway::{Datagrams, Paths, Peers, Protection, block_on_gated, confine, stop_signal};
use crate::stderr::eprintln;

/// Arguments of `plait run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    datagrams: Datagrams,
    #[command(flatten)]
    protection: Protection,
    #[command(flatten)]
    peers: Peers,
    #[command(flatten)]
    paths: Paths,
    /// User as whom the program runs, by name or number [default: the user who called sudo, or else that of plait]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = args.paths.config()?;
    let settings = args.protection.outbound("run", &args.peers, &config)?;
    let (route, datagrams) = (args.peers.route(&config), args.datagrams.scheduler(&config));
    let user = args.user.as_deref().map(|name| User::find(name).map(Some)).unwrap_or_else(User::caller)?;
    if let Some((user, missing)) = user.as_ref().and_then(|user| Some((user, user.missing_capabilities()?))) {
        bail!(
            "cannot run the program as {}: this process lacks {missing}: run plait as root, as by sudo",
            user.name()
        );
    }
    block_on_gated(settings, async |settings, gate| {
        let gateway = Gateway::start(settings)?;
        gateway.publish();
        let outbound = Outbound::start(&gateway, config.roles)?.with_route(route)?;
        let outbound = outbound.with_early_data(config.exit.early_data);
        let outbound = Arc::new(outbound.with_datagram_scheduler(datagrams));
        let mut command = args.command.into_iter();
        let program = command.next().context("no program given")?;
        let started = |program| {
            confine(gate, outbound.sandbox_rules(program))
                .map_err(|error| io::Error::other(format!("{error:#}")))
        };
        let status = outbound.run(program, command.collect(), user, started).await;
        // If the program did not start, the gateway is not confined, and has only to stop.
        gate.open();
        let mut stop = stop_signal()?;
        tokio::select! {
            () = gateway.shut_down_when_idle() => {}
            _ = stop.next() => {}
        }
        match status {
            // The exit statuses of env and nohup.
            Err(error @ RunError::Spawn { .. }) => {
                eprintln!("plait: {error}");
                Ok(ExitCode::from(if error.is_not_found() { 127 } else { 126 }))
            }
            status => Ok(ExitCode::from(exit_code(status?))),
        }
    })
}
