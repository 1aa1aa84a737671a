//! Loads custom selectors and actors: programs that include bpf/plait.bpf.h, from a C source or a compiled object.
//!
//! Sources are compiled with `clang-19`, or the compiler that `PLAIT_CLANG` names; the headers they include come with
//! plait. A compiled object needs no compiler on the host and runs on every kernel that plait supports.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use libbpf_rs::{Object, ObjectBuilder, OpenObject, PrintLevel};

/// Why a file with custom programs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CustomFileError {
    /// The file cannot be read.
    #[error("cannot read {}: {reason}", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// The file name has neither the extension of a C source nor that of an object.
    #[error("expected a C source (.c) or a compiled object (.o), got {}", .0.display())]
    Kind(PathBuf),
    /// The compiler cannot be run.
    #[error(
        "cannot run {compiler} to compile {}: {reason}; install it (Debian: clang-19, libbpf-dev, linux-libc-dev), \
         set PLAIT_CLANG to another one, or compile the file elsewhere and use the object (.o)", .file.display()
    )]
    NoCompiler {
        /// The compiler.
        compiler: String,
        /// The file.
        file: PathBuf,
        /// Why not.
        reason: io::Error,
    },
    /// The compiler rejects the source.
    #[error("{} cannot be compiled:\n{output}", .file.display())]
    Compile {
        /// The file.
        file: PathBuf,
        /// The output of the compiler.
        output: String,
    },
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
        let object = match path.extension().and_then(|extension| extension.to_str()) {
            Some("o") => {
                fs::read(path).map_err(|reason| CustomFileError::Read { file: path.into(), reason })?
            }
            Some("c") => compile(path)?,
            _ => return Err(CustomFileError::Kind(path.into())),
        };
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
        copied.map_err(|reason| CustomFileError::Read { file: self.path.clone(), reason })
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

/// Compiles a C source.
fn compile(source: &Path) -> Result<Vec<u8>, CustomFileError> {
    let failed = |reason| CustomFileError::Read { file: source.into(), reason };
    let directory = tempfile::tempdir().map_err(failed)?;
    for (name, text) in HEADERS {
        fs::File::create(directory.path().join(name))
            .and_then(|mut file| file.write_all(text))
            .map_err(failed)?;
    }
    // Open it first, so that an error names this file.
    fs::File::open(source).map_err(failed)?;
    let object = directory.path().join("custom.bpf.o");
    let compiler = env::var("PLAIT_CLANG").unwrap_or_else(|_| "clang-19".into());
    let mut includes = OsString::from("-I");
    includes.push(directory.path());
    let result = Command::new(&compiler)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-fno-color-diagnostics"])
        // Kernel headers are architecture specific and clang does not look there for the bpf target.
        .arg(format!("-I/usr/include/{}-linux-gnu", env::consts::ARCH))
        .arg(includes)
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(&object)
        .output();
    let result =
        result.map_err(|reason| CustomFileError::NoCompiler { compiler, file: source.into(), reason })?;
    if !result.status.success() {
        let output = String::from_utf8_lossy(&result.stderr).trim_end().to_owned();
        return Err(CustomFileError::Compile { file: source.into(), output });
    }
    fs::read(&object).map_err(failed)
}

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
