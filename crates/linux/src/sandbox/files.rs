//! Restricts which files can be opened, created and removed, by Landlock (`landlock(7)`).

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::{MissingFeature, SandboxError};
use crate::cgroup::ParentCgroup;

/// The newest version whose rights are known here; an older kernel restricts less.
const NEWEST_ABI: ABI = ABI::V6;

/// The files that a process may open. What is below a directory is included; what does not exist is left out.
#[derive(Debug, Default)]
pub struct Files {
    /// Readable.
    pub read: Vec<PathBuf>,
    /// Readable and writable, but nothing can be created.
    pub write: Vec<PathBuf>,
    /// Readable and writable, and files can be created, replaced and removed.
    pub manage: Vec<PathBuf>,
    /// Directories in which files can be removed.
    pub remove: Vec<PathBuf>,
    /// Directories in which empty directories can be removed.
    pub remove_empty: Vec<PathBuf>,
    /// Directories in which directories can be listed and removed, and files be read.
    pub remove_directories: Vec<OwnedFd>,
    /// Writable files.
    pub write_opened: Vec<OwnedFd>,
}

impl Files {
    /// Adds what it takes to remove the cgroups below this one.
    pub fn remove_cgroups_below(&mut self, parent: ParentCgroup) {
        self.remove_directories.push(parent.directory);
        self.write_opened.push(parent.processes);
    }

    /// The rules, which are in force for nobody yet.
    pub(super) fn ruleset(&self) -> Result<RulesetCreated, SandboxError> {
        self.build().map_err(|error| SandboxError::Rules(error.to_string()))
    }

    fn build(&self) -> Result<RulesetCreated, RulesetError> {
        use AccessFs::{MakeReg, ReadDir, ReadFile, Refer, RemoveDir, RemoveFile, Truncate, WriteFile};

        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST_ABI))?
            .scope(Scope::AbstractUnixSocket)?
            .create()?;
        let write = ReadFile | ReadDir | WriteFile | Truncate;
        let paths = [
            (&self.read, ReadFile | ReadDir),
            (&self.write, write),
            (&self.manage, write | MakeReg | RemoveFile | Refer),
            (&self.remove, RemoveFile.into()),
            (&self.remove_empty, RemoveDir.into()),
        ];
        for (paths, access) in paths {
            for path in paths {
                let Ok(opened) = PathFd::new(path) else { continue };
                let access = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST_ABI) };
                rules = rules.add_rule(PathBeneath::new(opened, access))?;
            }
        }
        let descriptors: [(&[OwnedFd], BitFlags<AccessFs>); 2] = [
            (&self.remove_directories, ReadFile | ReadDir | RemoveDir),
            (&self.write_opened, ReadFile | WriteFile),
        ];
        for (descriptors, access) in descriptors {
            for descriptor in descriptors {
                rules = rules.add_rule(PathBeneath::new(descriptor.as_fd(), access))?;
            }
        }
        Ok(rules)
    }
}

/// Restricts the calling thread.
pub(super) fn restrict(rules: &RulesetCreated) -> Result<Option<MissingFeature>, SandboxError> {
    let failed = |reason| SandboxError::Refused { action: "restrict files by Landlock", reason };
    let rules = rules.try_clone().map_err(failed)?;
    let status = rules.restrict_self().map_err(|error| failed(std::io::Error::other(error)))?;
    Ok((status.ruleset == RulesetStatus::NotEnforced).then_some(MissingFeature::Landlock))
}
