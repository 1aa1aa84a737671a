//! The user as whom a privileged command runs a program.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::{self, Gid, Uid};

/// A user, with what a program that runs as this user inherits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    uid: Uid,
    gid: Gid,
    /// The groups, the primary one included.
    groups: Vec<Gid>,
    name: String,
    home: PathBuf,
}

impl User {
    /// The user with this name, or else this number.
    ///
    /// # Errors
    /// There is no such user, or the database of users cannot be read.
    pub fn find(name_or_uid: &str) -> io::Result<User> {
        let named = unistd::User::from_name(name_or_uid)?;
        let numbered =
            || name_or_uid.parse().map_or(Ok(None), |uid| unistd::User::from_uid(Uid::from_raw(uid)));
        let found = named.map_or_else(numbered, |user| Ok(Some(user)))?;
        let found = found.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("no user with the name or number '{name_or_uid}'"),
            )
        })?;
        let name = CString::new(found.name.as_str())?;
        let groups = unistd::getgrouplist(&name, found.gid)?;
        Ok(User { uid: found.uid, gid: found.gid, groups, name: found.name, home: found.dir })
    }

    /// The user who called sudo(8), if this process is root by it.
    ///
    /// # Errors
    /// As [`find`](User::find).
    pub fn caller() -> io::Result<Option<User>> {
        match std::env::var("SUDO_UID") {
            Ok(uid) if Uid::effective().is_root() && uid != "0" => User::find(&uid).map(Some),
            _ => Ok(None),
        }
    }

    /// The login name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The home directory.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Makes the calling process this user's, for good. It allocates nothing, so it may be called between fork and exec.
    ///
    /// # Errors
    /// The process lacks the privileges.
    pub fn become_user(&self) -> io::Result<()> {
        if Uid::effective() == self.uid && Gid::effective() == self.gid {
            return Ok(());
        }
        unistd::setgroups(&self.groups)?;
        unistd::setresgid(self.gid, self.gid, self.gid)?;
        Ok(unistd::setresuid(self.uid, self.uid, self.uid)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_users_by_name_and_by_number() {
        let root = User::find("root").expect("root");
        assert_eq!((root.uid, root.gid, root.name()), (Uid::from_raw(0), Gid::from_raw(0), "root"));
        assert!(root.groups.contains(&root.gid));
        assert_eq!(User::find("0").expect("root"), root);
    }

    #[test]
    fn unknown_users_are_named() {
        for unknown in ["", "nobody-with-this-name", "4000000000", "-1"] {
            let error = User::find(unknown).expect_err("no such user");
            assert!(error.to_string().contains(&format!("'{unknown}'")), "{error}");
        }
    }
}
