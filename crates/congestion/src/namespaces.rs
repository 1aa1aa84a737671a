//! Enables an algorithm for a network namespace, by the sysctl `net.ipv4.tcp_congestion_control`. Its previous value is
//! saved in the run directory until it is restored.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use plait_linux::netns::NetNs;

use crate::Error;
use crate::kernel_algorithm::{KernelAlgorithm, PREFIX};

/// Enables an algorithm for the sockets created in a namespace from now on.
pub(crate) fn enable(saved_settings: &Path, namespace: &NetNs, kernel_name: &str) -> Result<(), Error> {
    let saved = saved_setting(saved_settings, namespace)?;
    inside(namespace, || {
        let before = setting()?;
        if !before.starts_with(PREFIX) {
            fs::write(&saved, &before).map_err(Error::file("write", &saved))?;
        }
        set(kernel_name)
    })
}

/// Restores the previous sysctl of a namespace. Returns the algorithm that was enabled, if any.
pub(crate) fn disable<A: KernelAlgorithm>(
    saved_settings: &Path,
    namespace: &NetNs,
) -> Result<Option<A>, Error> {
    let saved = saved_setting(saved_settings, namespace)?;
    let (disabled, is_saved_for_another) = inside(namespace, || {
        let current = setting()?;
        let Some(used) = A::named(&current) else { return Ok((None, current.starts_with(PREFIX))) };
        // Nothing was saved if the namespace inherited the algorithm when it was created.
        let before = fs::read_to_string(&saved).unwrap_or_else(|_| FALLBACK.into());
        if set(before.trim()).is_err() {
            // The previous algorithm is no longer available; the fallback always is.
            set(FALLBACK)?;
        }
        Ok((Some(used), false))
    })?;
    if is_saved_for_another {
        return Ok(None);
    }
    match fs::remove_file(&saved) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::file("remove", &saved)(error)),
        _ => Ok(disabled),
    }
}

/// The algorithm enabled for new sockets of a namespace, if it is of this kind.
pub(crate) fn enabled<A: KernelAlgorithm>(namespace: &NetNs) -> Result<Option<A>, Error> {
    inside(namespace, || Ok(A::named(&setting()?)))
}

/// Whether an algorithm of any kind is enabled for new sockets of a namespace.
pub(crate) fn uses_algorithm(namespace: &NetNs) -> Result<bool, Error> {
    inside(namespace, || Ok(setting()?.starts_with(PREFIX)))
}

/// Whether the algorithm is registered in the kernel, by plait or another program.
pub(crate) fn is_available(kernel_name: &str) -> Result<bool, Error> {
    let names = fs::read_to_string(AVAILABLE).map_err(Error::file("read", AVAILABLE))?;
    Ok(names.split_whitespace().any(|name| name == kernel_name))
}

fn inside<T: Send>(namespace: &NetNs, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    namespace.run(work).map_err(Error::Namespace)?
}

fn setting() -> Result<String, Error> {
    let value = fs::read_to_string(SETTING).map_err(Error::file("read", SETTING))?;
    Ok(value.trim().to_owned())
}

fn set(name: &str) -> Result<(), Error> {
    fs::write(SETTING, name).map_err(|error| {
        let text = format!("cannot set it to {name}: {error}; this requires root and a writable /proc/sys");
        Error::file("write", SETTING)(io::Error::new(error.kind(), text))
    })
}

fn saved_setting(saved_settings: &Path, namespace: &NetNs) -> Result<PathBuf, Error> {
    Ok(saved_settings.join(namespace.identity().map_err(Error::Namespace)?.inode.to_string()))
}

/// The sysctl of the calling thread's network namespace.
const SETTING: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
/// Available in every kernel and allowed in every namespace.
const FALLBACK: &str = "reno";
