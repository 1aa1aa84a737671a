//! Network namespaces whose sockets use an algorithm: by the kernel's setting for that, whose former value is kept in
//! the run directory until it is put back.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use plait_linux::netns::NetNs;

use crate::algorithm::PREFIX;
use crate::{Algorithm, Error};

/// Lets sockets that are made in a namespace from now on use an algorithm.
pub(crate) fn begin(records: &Path, namespace: &NetNs, algorithm: Algorithm) -> Result<(), Error> {
    let record = record_of(records, namespace)?;
    inside(namespace, || {
        let before = setting()?;
        if !before.starts_with(PREFIX) {
            fs::write(&record, &before).map_err(Error::file("write", &record))?;
        }
        set(algorithm.kernel_name())
    })
}

/// Puts back what a namespace had before; the algorithm that it used, if it did.
pub(crate) fn end(records: &Path, namespace: &NetNs) -> Result<Option<Algorithm>, Error> {
    let record = record_of(records, namespace)?;
    let ended = inside(namespace, || {
        let Ok(used) = setting()?.parse::<Algorithm>() else { return Ok(None) };
        // A namespace that was made while the host used an algorithm has got it without a record.
        let before = fs::read_to_string(&record).unwrap_or_else(|_| EVERYWHERE.into());
        if set(before.trim()).is_err() {
            // What it had is there no more; this always is.
            set(EVERYWHERE)?;
        }
        Ok(Some(used))
    })?;
    match fs::remove_file(&record) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::file("remove", &record)(error)),
        _ => Ok(ended),
    }
}

/// The algorithm that new sockets of a namespace use, if it is one of these.
pub(crate) fn used(namespace: &NetNs) -> Result<Option<Algorithm>, Error> {
    inside(namespace, || Ok(setting()?.parse().ok()))
}

/// What the kernel has, registered by whomever.
pub(crate) fn is_available(algorithm: Algorithm) -> Result<bool, Error> {
    let names = fs::read_to_string(AVAILABLE).map_err(Error::file("read", AVAILABLE))?;
    Ok(names.split_whitespace().any(|name| name == algorithm.kernel_name()))
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
        let text = format!("cannot set it to {name}: {error}; it takes root and a writable /proc/sys");
        Error::file("write", SETTING)(io::Error::new(error.kind(), text))
    })
}

fn record_of(records: &Path, namespace: &NetNs) -> Result<PathBuf, Error> {
    Ok(records.join(namespace.identity().map_err(Error::Namespace)?.inode.to_string()))
}

/// Of the calling thread's network namespace.
const SETTING: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
/// Every kernel has it, and lets every namespace use it.
const EVERYWHERE: &str = "reno";
