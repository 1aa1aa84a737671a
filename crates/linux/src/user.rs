//! The user as whom a privileged command runs a program.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::{self, Gid, Uid};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::privileges::MissingCapabilities;

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

/// The id that Linux shows for users that have none (`/proc/sys/kernel/overflowuid`).
const OVERFLOW_ID: u32 = 65534;

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

    /// As whom a service runs that root starts: `plait` if there is such a user, else `nobody`, which every system has, be it
    /// as the number 65534 only.
    pub fn unprivileged() -> User {
        let named = ["plait", "nobody"].into_iter().find_map(|name| User::find(name).ok());
        named.filter(|user| !user.uid.is_root()).unwrap_or_else(|| User {
            uid: Uid::from_raw(OVERFLOW_ID),
            gid: Gid::from_raw(OVERFLOW_ID),
            groups: Vec::new(),
            name: OVERFLOW_ID.to_string(),
            home: "/".into(),
        })
    }

    /// Why this process cannot [become](User::become_user) this user, if it cannot.
    pub fn missing_capabilities(&self) -> Option<MissingCapabilities> {
        MissingCapabilities::to_change_user().filter(|_| !self.is_current())
    }

    fn is_current(&self) -> bool {
        Uid::effective() == self.uid && Gid::effective() == self.gid
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
        if self.is_current() {
            return Ok(());
        }
        unistd::setgroups(&self.groups)?;
        unistd::setresgid(self.gid, self.gid, self.gid)?;
        Ok(unistd::setresuid(self.uid, self.uid, self.uid)?)
    }

    /// Makes the calling thread this user's, for good, and leaves the process's other threads as they are.
    pub(crate) fn become_user_in_thread(&self) -> Result<(), Errno> {
        let (uid, gid) = (self.uid.as_raw(), self.gid.as_raw());
        let groups: Vec<_> =
            self.groups.iter().map(|group| rustix::fs::Gid::from_raw(group.as_raw())).collect();
        let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)
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
