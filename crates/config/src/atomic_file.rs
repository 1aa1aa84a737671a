//! Files that appear under their names only when they are complete.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file that appears under its name only when it is complete. Until then it is `NAME.partial` in the same
/// directory, which is removed on drop. If a killed process leaves a partial file, the next writer overwrites it.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    partial: PathBuf,
    out: BufWriter<File>,
    complete: bool,
    published: bool,
}

impl AtomicFile {
    /// Creates the partial file. An existing file of this name stays until [`publish`](Self::publish); if it is a
    /// symbolic link, its target is replaced.
    ///
    /// # Errors
    /// The name belongs to something other than a regular file, such as `/dev/stdout`, or the partial file cannot be
    /// created. All errors name the file.
    pub fn create(path: impl Into<PathBuf>) -> io::Result<Self> {
        Self::with_mode(path.into(), 0o666)
    }

    /// As [`create`](Self::create), readable and writable by its owner alone.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    pub fn create_private(path: impl Into<PathBuf>) -> io::Result<Self> {
        Self::with_mode(path.into(), 0o600)
    }

    fn with_mode(mut path: PathBuf, mode: u32) -> io::Result<Self> {
        match fs::metadata(&path) {
            Ok(there) if !there.is_file() => {
                let other = io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "expected a regular file, got something else",
                );
                return Err(with_path(other, &path));
            }
            Ok(_) => path = path.canonicalize().map_err(|error| with_path(error, &path))?,
            // The file is new; otherwise creating the partial file fails and reports the reason.
            Err(_) => {}
        }
        let mut partial = OsString::from(path.as_os_str());
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&partial);
        let out = BufWriter::new(file.map_err(|error| with_path(error, &path))?);
        Ok(Self { path, partial, out, complete: false, published: false })
    }

    /// Flushes and syncs the file; late errors of disks and network file systems surface here.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn complete(&mut self) -> io::Result<()> {
        if !self.complete {
            self.flush()?;
            self.out.get_ref().sync_all().map_err(|error| with_path(error, &self.path))?;
            self.complete = true;
        }
        Ok(())
    }

    /// [Completes](Self::complete) the file and renames it.
    ///
    /// # Errors
    /// The file cannot be written or renamed.
    pub fn publish(mut self) -> io::Result<()> {
        self.complete()?;
        fs::rename(&self.partial, &self.path).map_err(|error| with_path(error, &self.path))?;
        self.published = true;
        Ok(())
    }
}

impl Write for AtomicFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.complete = false;
        self.out.write(buf).map_err(|error| with_path(error, &self.path))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush().map_err(|error| with_path(error, &self.path))
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.published {
            // If it cannot be removed, its name still marks it as partial.
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Adds the path of the file to an error.
pub fn with_path(error: io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn file_appears_only_when_complete() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("it is \"quoted\"");
        fs::write(&path, "old").expect("writable");
        let names = || fs::read_dir(directory.path()).expect("readable").count();

        let mut file = AtomicFile::create(&path).expect("created");
        file.write_all(b"half").expect("written");
        drop(file);
        assert_eq!((fs::read(&path).expect("readable"), names()), (b"old".to_vec(), 1));

        let mut file = AtomicFile::create(&path).expect("created");
        file.write_all(b"new").expect("written");
        assert_eq!((fs::read(&path).expect("readable"), names()), (b"old".to_vec(), 2));
        file.publish().expect("published");
        assert_eq!((fs::read(&path).expect("readable"), names()), (b"new".to_vec(), 1));
    }

    #[test]
    fn private_file_is_readable_by_its_owner_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        AtomicFile::create_private(&path).and_then(AtomicFile::publish).expect("published");
        assert_eq!(fs::metadata(&path).expect("it exists").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn keeps_symlinks_and_rejects_devices() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&path, "old").expect("writable");
        std::os::unix::fs::symlink("file", &link).expect("linked");
        let mut file = AtomicFile::create(&link).expect("created");
        file.write_all(b"new").expect("written");
        file.publish().expect("published");
        assert!(link.is_symlink());
        assert_eq!(fs::read(&path).expect("readable"), b"new");
        let error = AtomicFile::create("/dev/null").expect_err("a device");
        assert!(error.to_string().contains("/dev/null"), "{error}");
    }

    #[test]
    fn errors_name_the_file() {
        let error = AtomicFile::create("/nonexistent/a").expect_err("there is no such directory");
        assert!(error.to_string().starts_with("cannot write /nonexistent/a: "), "{error}");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
