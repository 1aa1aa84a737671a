//! Selectors and actors of the user's own: programs made with bpf/plait.bpf.h, from a C source or a compiled object.
//!
//! A source is compiled with `clang-19`, or what `PLAIT_CLANG` names; the headers that it includes come with plait. Who
//! has no compiler compiles elsewhere and names the object: it runs on every kernel that plait runs on.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use libbpf_rs::{Object, ObjectBuilder, OpenObject, PrintLevel};

/// Why a file of the user's own cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read {}: {reason}", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why not.
        reason: io::Error,
    },
    /// It is neither a C source nor a compiled object, by its name.
    #[error("expected a C source (.c) or a compiled object (.o), found {}", .0.display())]
    Kind(PathBuf),
    /// There is no compiler.
    #[error(
        "cannot run {compiler} to compile {}: {reason}; install it (Debian: clang-19, libbpf-dev, linux-libc-dev), name \
         another by PLAIT_CLANG, or compile the file elsewhere and name the object (.o)", .file.display()
    )]
    NoCompiler {
        /// The compiler.
        compiler: String,
        /// The file.
        file: PathBuf,
        /// Why not.
        reason: io::Error,
    },
    /// The compiler refuses the source.
    #[error("{} cannot be compiled:\n{said}", .file.display())]
    Compile {
        /// The file.
        file: PathBuf,
        /// What the compiler said.
        said: String,
    },
    /// The kernel refuses the programs.
    #[error("the kernel does not load the programs of {}: {reason}; it said last:\n{verifier}", .file.display())]
    Load {
        /// The file.
        file: PathBuf,
        /// What it says.
        reason: libbpf_rs::Error,
        /// The verifier's last lines.
        verifier: String,
    },
    /// There is no selector or actor of the name.
    #[error(
        "{} has neither PLAIT_SELECTOR({name}) nor PLAIT_ACTOR({name}); it has {}", .file.display(), listed(.found)
    )]
    Missing {
        /// The file.
        file: PathBuf,
        /// The name.
        name: String,
        /// What is in it.
        found: Vec<String>,
    },
}

/// A selector or an actor, for both kinds of hooks.
#[derive(Debug)]
pub(crate) struct Own {
    /// For XDP.
    pub(crate) xdp: OwnedFd,
    /// For TC.
    pub(crate) tc: OwnedFd,
}

/// What a file has under a name.
#[derive(Debug)]
pub(crate) struct Owned {
    /// `PLAIT_SELECTOR`
    pub(crate) selector: Option<Own>,
    /// `PLAIT_ACTOR`
    pub(crate) actor: Option<Own>,
}

/// The programs of a file, loaded. They stay in the kernel for as long as somebody has them.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    object: Object,
}

impl File {
    /// Compiles the file, if it is a source, and loads it. Maps that `shared` knows by name are those of plait's own
    /// programs, other maps are the file's. `flags` are those of plait's programs for XDP, which can only call
    /// programs that have the same.
    pub(crate) fn load<'m>(
        path: &Path,
        shared: impl Fn(&str) -> Option<BorrowedFd<'m>>,
        flags: u32,
    ) -> Result<File, Error> {
        let object = match path.extension().and_then(|extension| extension.to_str()) {
            Some("o") => fs::read(path).map_err(|reason| Error::Read { file: path.into(), reason })?,
            Some("c") => compile(path)?,
            _ => return Err(Error::Kind(path.into())),
        };
        let load = || {
            let mut open = ObjectBuilder::default().open_memory(&object)?;
            prepare(&mut open, shared, flags)?;
            open.load()
        };
        match listening(load) {
            (Ok(object), _) => Ok(File { path: path.into(), object }),
            (Err(reason), said) => Err(Error::Load { file: path.into(), reason, verifier: last(&said) }),
        }
    }

    /// What it has under a name.
    pub(crate) fn find(&self, name: &str) -> Result<Owned, Error> {
        let pair = |kind: &str| -> Result<Option<Own>, Error> {
            let program = |hook: &str| self.program(&format!("{kind}_{name}_{hook}"));
            Ok(program("xdp")?.zip(program("tc")?).map(|(xdp, tc)| Own { xdp, tc }))
        };
        let owned = Owned { selector: pair("select")?, actor: pair("act")? };
        if owned.selector.is_none() && owned.actor.is_none() {
            return Err(Error::Missing { file: self.path.clone(), name: name.into(), found: self.names() });
        }
        Ok(owned)
    }

    fn program(&self, name: &str) -> Result<Option<OwnedFd>, Error> {
        let found = self.object.progs().find(|program| program.name() == name);
        let copied = found.map(|program| program.as_fd().try_clone_to_owned()).transpose();
        copied.map_err(|reason| Error::Read { file: self.path.clone(), reason })
    }

    /// The names of its selectors and actors.
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

/// Calls `work`, and keeps what libbpf says meanwhile: with a program that is refused, the verifier's reasons.
fn listening<T>(work: impl FnOnce() -> T) -> (T, String) {
    SAID.take();
    let before =
        libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| SAID.with_borrow_mut(|said| *said += &text))));
    let done = work();
    libbpf_rs::set_print(before);
    (done, SAID.take())
}

thread_local! {
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The last lines of a long text.
fn last(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

const LINES: usize = 30;

/// The object made of a C source.
fn compile(source: &Path) -> Result<Vec<u8>, Error> {
    let failed = |reason| Error::Read { file: source.into(), reason };
    let directory = tempfile::tempdir().map_err(failed)?;
    for (name, text) in HEADERS {
        fs::File::create(directory.path().join(name))
            .and_then(|mut file| file.write_all(text))
            .map_err(failed)?;
    }
    // Read here, so that the error names the file if that is what is wrong.
    fs::File::open(source).map_err(failed)?;
    let object = directory.path().join("own.bpf.o");
    let compiler = env::var("PLAIT_CLANG").unwrap_or_else(|_| "clang-19".into());
    let mut includes = OsString::from("-I");
    includes.push(directory.path());
    let ran = Command::new(&compiler)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-fno-color-diagnostics"])
        // Kernel headers are architecture specific and clang does not look there for the bpf target.
        .arg(format!("-I/usr/include/{}-linux-gnu", env::consts::ARCH))
        .arg(includes)
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(&object)
        .output();
    let ran = ran.map_err(|reason| Error::NoCompiler { compiler, file: source.into(), reason })?;
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr).trim_end().to_owned();
        return Err(Error::Compile { file: source.into(), said });
    }
    fs::read(&object).map_err(failed)
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// What a source may include.
const HEADERS: &[(&str, &[u8])] = &[
    ("plait.bpf.h", include_bytes!("../bpf/plait.bpf.h")),
    ("constants.h", include_bytes!("../../../bpf/include/constants.h")),
    ("intf.h", include_bytes!("../bpf/intf.h")),
    ("options.h", include_bytes!("../bpf/options.h")),
    ("own.h", include_bytes!("../bpf/own.h")),
];
