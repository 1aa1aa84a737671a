//! Loads custom selectors and actors: programs that include bpf/plait.bpf.h, from a C source or a compiled object.
//! A compiled object runs on every kernel that plait supports.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::{Object, ObjectBuilder, OpenObject, PrintLevel};
use plait_linux::bpf_source::{SourceError, object_of};

/// Why a file with custom programs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CustomFileError {
    /// The file cannot be read or compiled.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The kernel rejects the programs.
    #[error("cannot load the programs of {}: {reason}; end of the verifier log:\n{verifier}", .file.display())]
    Load {
        /// The file.
        file: PathBuf,
        /// The error.
        reason: libbpf_rs::Error,
        /// The last lines of the verifier's log.
        verifier: String,
    },
    /// The file defines no selector or actor with this name.
    #[error(
        "{} defines neither PLAIT_SELECTOR({name}) nor PLAIT_ACTOR({name}); it defines {}", .file.display(), list_or_none(.found)
    )]
    Missing {
        /// The file.
        file: PathBuf,
        /// The name.
        name: String,
        /// The ones it defines.
        found: Vec<String>,
    },
}

/// A selector or an actor: one program for each kind of hook.
#[derive(Debug)]
pub(crate) struct ProgramPair {
    /// For XDP.
    pub(crate) xdp: OwnedFd,
    /// For TC.
    pub(crate) tc: OwnedFd,
}

/// The programs that a file defines under one name.
#[derive(Debug)]
pub(crate) struct CustomPrograms {
    /// `PLAIT_SELECTOR`
    pub(crate) selector: Option<ProgramPair>,
    /// `PLAIT_ACTOR`
    pub(crate) actor: Option<ProgramPair>,
}

/// The loaded programs of a file. They stay in the kernel as long as they are referenced.
#[derive(Debug)]
pub(crate) struct CustomFile {
    path: PathBuf,
    object: Object,
}

impl CustomFile {
    /// Compiles the file, if it is a source, and loads it. Maps that `shared` returns by name are those of plait's
    /// programs; other maps are private to the file. `flags` are those of plait's XDP programs, which can only
    /// tail-call programs with the same flags.
    pub(crate) fn load<'m>(
        path: &Path,
        shared: impl Fn(&str) -> Option<BorrowedFd<'m>>,
        flags: u32,
    ) -> Result<CustomFile, CustomFileError> {
        let object = object_of(path, HEADERS)?;
        let load = || {
            let mut open = ObjectBuilder::default().open_memory(&object)?;
            prepare(&mut open, shared, flags)?;
            open.load()
        };
        match capture_log(load) {
            (Ok(object), _) => Ok(CustomFile { path: path.into(), object }),
            (Err(reason), output) => {
                Err(CustomFileError::Load { file: path.into(), reason, verifier: last_lines(&output) })
            }
        }
    }

    /// The programs with this name.
    pub(crate) fn find(&self, name: &str) -> Result<CustomPrograms, CustomFileError> {
        let pair = |kind: &str| -> Result<Option<ProgramPair>, CustomFileError> {
            let program = |hook: &str| self.program(&format!("{kind}_{name}_{hook}"));
            Ok(program("xdp")?.zip(program("tc")?).map(|(xdp, tc)| ProgramPair { xdp, tc }))
        };
        let owned = CustomPrograms { selector: pair("select")?, actor: pair("act")? };
        if owned.selector.is_none() && owned.actor.is_none() {
            return Err(CustomFileError::Missing {
                file: self.path.clone(),
                name: name.into(),
                found: self.names(),
            });
        }
        Ok(owned)
    }

    fn program(&self, name: &str) -> Result<Option<OwnedFd>, CustomFileError> {
        let found = self.object.progs().find(|program| program.name() == name);
        let copied = found.map(|program| program.as_fd().try_clone_to_owned()).transpose();
        Ok(copied.map_err(|reason| SourceError::Read { file: self.path.clone(), reason })?)
    }

    /// The selectors and actors that the file defines.
    fn names(&self) -> Vec<String> {
        let named = |program: String| {
            let name = program.strip_suffix("_tc")?;
            let selector = name.strip_prefix("select_").map(|name| format!("PLAIT_SELECTOR({name})"));
            selector.or_else(|| name.strip_prefix("act_").map(|name| format!("PLAIT_ACTOR({name})")))
        };
        let programs = self.object.progs().map(|program| program.name().to_string_lossy().into_owned());
        programs.filter_map(named).collect()
    }
}

fn prepare<'m>(
    object: &mut OpenObject,
    shared: impl Fn(&str) -> Option<BorrowedFd<'m>>,
    flags: u32,
) -> libbpf_rs::Result<()> {
    for mut map in object.maps_mut() {
        if let Some(plaits) = map.name().to_str().and_then(&shared) {
            map.reuse_fd(plaits)?;
        }
    }
    for mut program in object.progs_mut() {
        if program.section() == "xdp" {
            program.set_flags(flags);
        }
    }
    Ok(())
}

/// Calls `work` and captures the messages of libbpf, which include the verifier's log of a rejected program.
fn capture_log<T>(work: impl FnOnce() -> T) -> (T, String) {
    LIBBPF_LOG.take();
    let before = libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| {
        LIBBPF_LOG.with_borrow_mut(|output| *output += &text)
    })));
    let done = work();
    libbpf_rs::set_print(before);
    (done, LIBBPF_LOG.take())
}

thread_local! {
    static LIBBPF_LOG: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The last lines of a text.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

const LOG_LINES: usize = 30;

fn list_or_none(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// The headers that a source may include.
const HEADERS: &[(&str, &[u8])] = &[
    ("plait.bpf.h", include_bytes!("../../bpf/plait.bpf.h")),
    ("constants.h", include_bytes!("../../../../bpf/include/constants.h")),
    ("intf.h", include_bytes!("../../bpf/intf.h")),
    ("flows_map.h", include_bytes!("../../bpf/flows_map.h")),
    ("options.h", include_bytes!("../../bpf/options.h")),
    ("custom.h", include_bytes!("../../bpf/custom.h")),
];
