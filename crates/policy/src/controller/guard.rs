//! Reverts what a controller has set and no expiry reverts.
//!
//! MP_PRIO stays in force until the next MP_PRIO, and no packets pass on a backup subflow to which the packet path could
//! add one. From a controller's first backup on, a separate process therefore waits until the controller's policy has
//! lapsed, and then clears the backups. The controller kills it when it ends normally.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use super::error::ControllerError;
use super::expiry::default_expiry;
use super::session::Session;
use crate::engine::{Engine, LoadedPolicy};

/// Waits until the policy `name` of a controller has lapsed, then tells the peers of its backup subflows that they are
/// regular ones, and removes the policy. Returns as soon as no such policy is loaded.
///
/// Writes a line to standard output when it is ready, and looks for the policy when standard input ends: the controller
/// loads it in between.
///
/// # Errors
/// As for [`Session`].
pub fn guard(name: &str) -> Result<(), ControllerError> {
    // The ancestors of the controller determine where policies are stored, and are unknown when it is dead.
    let engine = Engine::current()?;
    // Both fail only if the controller is dead: then it has loaded what it will.
    let _ = writeln!(io::stdout());
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    while let Some(LoadedPolicy { policy, remaining: Some(remaining), .. }) = engine.policy(name)? {
        if !remaining.is_zero() {
            thread::sleep(remaining);
            continue;
        }
        return Session::with_engine(engine, name, default_expiry(Duration::ZERO))?.revert_lapsed(&policy);
    }
    Ok(())
}
