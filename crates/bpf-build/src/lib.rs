//! Compiles the BPF C in a crate's `bpf/` directory and generates skeletons, from that crate's build script.
//!
//! Every `bpf/NAME.bpf.c` becomes two files in `$OUT_DIR`: the object `NAME.bpf.o`, and its skeleton `NAME.skel.rs`,
//! with a typed field for each program, map and constant, so that a renamed one is a compile error. The crate includes
//! the skeletons that it uses in a module `skeleton`:
//!
//! ```ignore
//! pub(crate) mod ended {
//!     include!(concat!(env!("OUT_DIR"), "/ended.skel.rs"));
//! }
//! ```
//!
//! The compiler is `clang-19` (or what `PLAIT_CLANG` names): older ones lack type tags for kernel pointers and the v4
//! instruction set. The headers in the top-level `bpf/include/` are shared by all programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use libbpf_cargo::SkeletonBuilder;

/// Compiles all `bpf/*.bpf.c` of the calling crate. For build scripts: panics with the remedy on failure.
pub fn compile() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("OUT_DIR is set by cargo"));
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-changed={INCLUDE}");
    println!("cargo:rerun-if-env-changed=PLAIT_CLANG");
    let entries = fs::read_dir("bpf").expect("a crate that compiles BPF has a directory bpf/");
    for entry in entries {
        let source = entry.expect("a readable directory bpf/").path();
        let name = source.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(name) = name.strip_suffix(".bpf.c") {
            let object = out.join(format!("{name}.bpf.o"));
            compile_one(&source, &object);
            generate_skeleton(&object, &out.join(format!("{name}.skel.rs")));
        }
    }
}

fn compile_one(source: &Path, object: &Path) {
    let clang = env::var("PLAIT_CLANG").unwrap_or_else(|_| "clang-19".into());
    // Kernel headers are architecture specific and clang does not look there for the bpf target.
    let multiarch = format!("-I/usr/include/{}-linux-gnu", env::consts::ARCH);
    let status = Command::new(&clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror"])
        // Functions with the same signature need not all use every parameter.
        .arg("-Wno-unused-parameter")
        .args([multiarch.as_str(), "-I", INCLUDE, "-c"])
        .arg(source)
        .arg("-o")
        .arg(object)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{clang} could not compile {}: {status}", source.display()),
        Err(error) => panic!("cannot run {clang} ({error}): run scripts/install-deps, or set PLAIT_CLANG"),
    }
}

fn generate_skeleton(object: &Path, skeleton: &Path) {
    let generated = SkeletonBuilder::new().obj(object).reference_obj(true).generate(skeleton);
    generated.unwrap_or_else(|error| panic!("cannot generate {}: {error:#}", skeleton.display()));
}

/// Headers that the programs of several crates share.
const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/include");
