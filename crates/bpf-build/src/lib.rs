//! Compiles the BPF programs in a crate's `bpf/` directory and generates their Rust side, from its build script.
//!
//! Each `bpf/NAME.bpf.c` is compiled to an object `$OUT_DIR/NAME.bpf.o` with a skeleton `$OUT_DIR/NAME.skel.rs`, which
//! has a typed field for each program, map and constant, so that using a missing one is a compile error. The crate
//! includes the skeletons that it uses in a module `skeleton`:
//!
//! ```ignore
//! pub(crate) mod sockets {
//!     include!(concat!(env!("OUT_DIR"), "/sockets.skel.rs"));
//! }
//! ```
//!
//! `bpf/intf.h`, the interface between the programs and Rust, becomes `$OUT_DIR/bindings.rs`, by `bindgen`: its structures,
//! and its enumerations as constants, because a program may write values that Rust does not know.
//!
//! The compiler is clang, version 16 or later ([`clang::find`]). Objects depend on the architecture of the target, whose kernel
//! headers must be installed. They contain no path of this machine. All programs share the headers in the top-level
//! `bpf/include/`.

pub mod clang;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use libbpf_cargo::SkeletonBuilder;

/// Compiles all `bpf/*.bpf.c` of the calling crate, and generates skeletons and bindings. For build scripts: on failure,
/// panics with a remedy.
pub fn compile() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("OUT_DIR is set by cargo"));
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-changed={INCLUDE}");
    println!("cargo:rerun-if-env-changed=PLAIT_CLANG");
    let entries = fs::read_dir("bpf").expect("directory bpf/ exists in the crate");
    for entry in entries {
        let source = entry.expect("directory bpf/ is readable").path();
        let name = source.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(name) = name.strip_suffix(".bpf.c") {
            let object = out.join(format!("{name}.bpf.o"));
            compile_one(&source, &object);
            generate_skeleton(&object, &out.join(format!("{name}.skel.rs")));
        }
    }
    generate_bindings(&out.join("bindings.rs"));
}

fn compile_one(source: &Path, object: &Path) {
    let mut command = Command::new(clang::find());
    command
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror"])
        // Callbacks have parameters that not all of them use.
        .arg("-Wno-unused-parameter")
        // Of the headers, only the line information of programs remains in objects.
        .arg(format!("-ffile-prefix-map={INCLUDE}=bpf/include"))
        .arg("-fdebug-compilation-dir=.")
        .args(kernel_headers())
        .args(["-I", INCLUDE, "-c"])
        .arg(source)
        .arg("-o")
        .arg(object);
    run(command, ", or set PLAIT_CLANG");
}

/// Kernel headers depend on the architecture; for the target bpf, clang does not search their directories. Debian has those
/// of other architectures either beside its own or in the packages for cross compilers.
fn kernel_headers() -> [String; 2] {
    let target =
        env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH for build scripts");
    [format!("-I/usr/include/{target}-linux-gnu"), format!("-I/usr/{target}-linux-gnu/include")]
}

fn generate_skeleton(object: &Path, skeleton: &Path) {
    let generated = SkeletonBuilder::new().obj(object).reference_obj(true).generate(skeleton);
    generated.unwrap_or_else(|error| panic!("cannot generate {}: {error:#}", skeleton.display()));
}

fn generate_bindings(bindings: &Path) {
    const INTERFACE: &str = "bpf/intf.h";
    let mut command = Command::new("bindgen");
    command
        .args([INTERFACE, "--allowlist-file", INTERFACE, "--no-layout-tests", "--no-doc-comments"])
        .args(["--default-enum-style", "consts", "--no-prepend-enum-name", "-o"])
        .arg(bindings);
    run(command, "");
}

fn run(mut command: Command, alternative: &str) {
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{command:?}: {status}"),
        Err(error) => panic!("cannot run {command:?} ({error}): run scripts/install-deps{alternative}"),
    }
}

/// The headers shared by the programs of several crates.
const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/include");
