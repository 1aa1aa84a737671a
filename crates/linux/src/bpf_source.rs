//! BPF programs of users, from a C source or a compiled object.
//!
//! Sources are compiled with clang, version 16 or later, or the compiler that `PLAIT_CLANG` names; the headers that they
//! include come with plait. A compiled object needs no compiler on the host.

#[path = "../../bpf-build/src/clang.rs"]
#[expect(unreachable_pub, reason = "public in plait-bpf-build")]
pub(crate) mod clang;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Why a user's programs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
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
        "cannot run {compiler} to compile {}: {reason}; install it (Debian: clang-19 or another version from 16 on, libbpf-dev, linux-libc-dev), \
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
}

/// Reads an object, or compiles a C source, which may include these headers, given by name and text.
///
/// # Errors
/// See [`SourceError`].
pub fn object_of(path: &Path, headers: &[(&str, &[u8])]) -> Result<Vec<u8>, SourceError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("o") => fs::read(path).map_err(|reason| SourceError::Read { file: path.into(), reason }),
        Some("c") => compile(path, headers),
        _ => Err(SourceError::Kind(path.into())),
    }
}

fn compile(source: &Path, headers: &[(&str, &[u8])]) -> Result<Vec<u8>, SourceError> {
    let failed = |reason| SourceError::Read { file: source.into(), reason };
    let directory = tempfile::tempdir().map_err(failed)?;
    for (name, text) in headers {
        fs::write(directory.path().join(name), text).map_err(failed)?;
    }
    // Open it first, so that an error names this file.
    fs::File::open(source).map_err(failed)?;
    let object = directory.path().join("custom.bpf.o");
    let compiler = clang::find();
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
        result.map_err(|reason| SourceError::NoCompiler { compiler, file: source.into(), reason })?;
    if !result.status.success() {
        let output = String::from_utf8_lossy(&result.stderr).trim_end().to_owned();
        return Err(SourceError::Compile { file: source.into(), output });
    }
    fs::read(&object).map_err(failed)
}
