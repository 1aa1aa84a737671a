use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file that appears under its name only when it is whole: until then it is `NAME.partial` in the same directory, which
/// goes with this value. What a killed process left is overwritten by the next.
#[derive(Debug)]
pub struct WholeFile {
    path: PathBuf,
    partial: PathBuf,
    out: BufWriter<File>,
    complete: bool,
    published: bool,
}

impl WholeFile {
    /// A file to be. What has this name stays until [`publish`](Self::publish); where it is a link to a file, that file
    /// is replaced then.
    ///
    /// # Errors
    /// Something other than a file has this name, as `/dev/stdout` has, or the partial file cannot be created. As all
    /// errors here, it names the file.
    pub fn create(path: impl Into<PathBuf>) -> io::Result<Self> {
        let mut path = path.into();
        match fs::metadata(&path) {
            Ok(there) if !there.is_file() => {
                let other = io::Error::new(io::ErrorKind::InvalidInput, "it is there, and is not a file");
                return Err(named(other, &path));
            }
            Ok(_) => path = path.canonicalize().map_err(|error| named(error, &path))?,
            // It is new, or creating it will tell what is wrong.
            Err(_) => {}
        }
        let mut partial = OsString::from(path.as_os_str());
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let out = BufWriter::new(File::create(&partial).map_err(|error| named(error, &path))?);
        Ok(Self { path, partial, out, complete: false, published: false })
    }

    /// Writes everything to the disk; errors that disks and network file systems tell late come here.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn complete(&mut self) -> io::Result<()> {
        if !self.complete {
            self.flush()?;
            self.out.get_ref().sync_all().map_err(|error| named(error, &self.path))?;
            self.complete = true;
        }
        Ok(())
    }

    /// [Completes](Self::complete) the file and gives it its name.
    ///
    /// # Errors
    /// The file cannot be written or renamed.
    pub fn publish(mut self) -> io::Result<()> {
        self.complete()?;
        fs::rename(&self.partial, &self.path).map_err(|error| named(error, &self.path))?;
        self.published = true;
        Ok(())
    }
}

impl Write for WholeFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.complete = false;
        self.out.write(buf).map_err(|error| named(error, &self.path))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush().map_err(|error| named(error, &self.path))
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if !self.published {
            // Nobody is left to hear of an error, and the name says that the file is partial.
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// An error that says which file could not be written.
pub(super) fn named(error: io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_name_only_when_it_is_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("it is \"quoted\"");
        fs::write(&path, "old").expect("writable");
        let names = || fs::read_dir(directory.path()).expect("readable").count();

        let mut file = WholeFile::create(&path).expect("created");
        file.write_all(b"half").expect("written");
        drop(file);
        assert_eq!((fs::read(&path).expect("readable"), names()), (b"old".to_vec(), 1));

        let mut file = WholeFile::create(&path).expect("created");
        file.write_all(b"new").expect("written");
        assert_eq!((fs::read(&path).expect("readable"), names()), (b"old".to_vec(), 2));
        file.publish().expect("published");
        assert_eq!((fs::read(&path).expect("readable"), names()), (b"new".to_vec(), 1));
    }

    #[test]
    fn a_link_stays_and_a_device_is_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&path, "old").expect("writable");
        std::os::unix::fs::symlink("file", &link).expect("linked");
        let mut file = WholeFile::create(&link).expect("created");
        file.write_all(b"new").expect("written");
        file.publish().expect("published");
        assert!(link.is_symlink());
        assert_eq!(fs::read(&path).expect("readable"), b"new");
        let error = WholeFile::create("/dev/null").expect_err("a device");
        assert!(error.to_string().contains("/dev/null"), "{error}");
    }

    #[test]
    fn an_error_names_the_file() {
        let error = WholeFile::create("/nonexistent/a").expect_err("there is no such directory");
        assert!(error.to_string().starts_with("cannot write /nonexistent/a: "), "{error}");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
