//! Reverts what a controller has set and no expiry reverts.
//!
//! MP_PRIO stays in force until the next MP_PRIO, and no packets pass on a backup subflow to which the packet path could
//! add one. From a controller's first backup on, a separate process therefore waits until the controller's policy has
//! lapsed, and then clears the backups. The controller kills it when it ends normally.

use std::thread;
use std::time::Duration;

use super::error::ControllerError;
use super::expiry::default_expiry;
use super::session::Session;
use crate::engine::{Engine, LoadedPolicy};

/// Waits until the policy `name` of a controller has lapsed, then tells the peers of its backup subflows that they are
/// regular ones, and removes the policy. Returns as soon as no such policy is loaded.
///
/// # Errors
/// As for [`Session`].
pub fn guard(name: &str) -> Result<(), ControllerError> {
    // Where policies are stored may be known from the environment of the parent only, so ask while it is alive.
    let engine = Engine::current()?;
    while let Some(LoadedPolicy { policy, remaining: Some(remaining), .. }) = engine.policy(name)? {
        if !remaining.is_zero() {
            thread::sleep(remaining);
            continue;
        }
        return Session::with_engine(engine, name, default_expiry(Duration::ZERO))?.revert_lapsed(&policy);
    }
    Ok(())
}
