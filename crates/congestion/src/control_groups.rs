//! Control groups, which programs are attached to by pins that have the groups' numbers in their names.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use plait_linux::cgroup;

use crate::Error;

/// The paths of control groups from the root of the hierarchy, by their numbers; those that are gone are left out.
pub(crate) fn paths(numbers: &[u64]) -> Result<Vec<(u64, PathBuf)>, Error> {
    let mut found = Vec::new();
    if numbers.is_empty() {
        return Ok(found);
    }
    let root = cgroup::open_root().map_err(cgroup::Error::NoFileSystem)?;
    let directory = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
    look(&directory, Path::new("/"), numbers, &mut found);
    Ok(found)
}

/// The number of a control group.
pub(crate) fn number(path: &Path, group: &OwnedFd) -> Result<u64, Error> {
    Ok(rustix::fs::fstat(group).map_err(|error| Error::file("read", path)(error.into()))?.st_ino)
}

/// Groups come and go: one that cannot be read is gone.
fn look(directory: &Path, path: &Path, numbers: &[u64], found: &mut Vec<(u64, PathBuf)>) {
    let Ok(metadata) = fs::metadata(directory) else { return };
    if numbers.contains(&metadata.ino()) {
        found.push((metadata.ino(), path.to_owned()));
    }
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            look(&entry.path(), &path.join(entry.file_name()), numbers, found);
        }
    }
}
