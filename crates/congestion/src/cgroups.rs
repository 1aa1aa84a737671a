//! Looks up control groups by id, as in the names of pins.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use plait_linux::cgroup;

use crate::Error;

/// The paths, from the root of the hierarchy, of the control groups with these ids. Groups that no longer exist are
/// omitted.
pub(crate) fn paths(ids: &[u64]) -> Result<Vec<(u64, PathBuf)>, Error> {
    let mut found = Vec::new();
    if ids.is_empty() {
        return Ok(found);
    }
    let root = cgroup::open_root().map_err(cgroup::Error::NoFileSystem)?;
    let directory = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
    search(&directory, Path::new("/"), ids, &mut found);
    Ok(found)
}

/// The id of a control group.
pub(crate) fn id(path: &Path, group: &OwnedFd) -> Result<u64, Error> {
    Ok(rustix::fs::fstat(group).map_err(|error| Error::file("read", path)(error.into()))?.st_ino)
}

/// Skips directories that cannot be read, as groups may be removed at any time.
fn search(directory: &Path, path: &Path, ids: &[u64], found: &mut Vec<(u64, PathBuf)>) {
    let Ok(metadata) = fs::metadata(directory) else { return };
    if ids.contains(&metadata.ino()) {
        found.push((metadata.ino(), path.to_owned()));
    }
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            search(&entry.path(), &path.join(entry.file_name()), ids, found);
        }
    }
}
