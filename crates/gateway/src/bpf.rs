//! Loading this crate's BPF objects, and the types that cross between them and Rust.
//!
//! `unsafe` here asserts that the generated structs are plain numbers without padding, which `intf.h` asserts too, and
//! calls the one function of libbpf that its Rust binding lacks.

use std::os::fd::{AsFd, AsRawFd};

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel};
use zeroize::Zeroizing;

use crate::bindings::{
    plait_client, plait_destination, plait_negotiate_settings, plait_ports, plait_redirect_settings,
    plait_selection, plait_told, plait_trusted_settings, plait_verdict,
};

macro_rules! plain_numbers {
    ($($name:ty),+) => {$(
        // SAFETY: integers only, and intf.h asserts that the size is the sum of the fields' sizes.
        unsafe impl Zeroable for $name {}
        // SAFETY: as above.
        unsafe impl Pod for $name {}
    )+};
}

plain_numbers!(
    plait_client,
    plait_destination,
    plait_negotiate_settings,
    plait_ports,
    plait_redirect_settings,
    plait_selection,
    plait_told,
    plait_trusted_settings,
    plait_verdict
);

/// A BPF object could not be loaded, attached or read.
#[derive(Debug, thiserror::Error)]
#[error("BPF: cannot {action}: {reason} ({hint})")]
pub struct BpfError {
    action: String,
    reason: libbpf_rs::Error,
    hint: &'static str,
}

const HINT: &str = "needs root or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and a kernel with BTF; \
                    `plait doctor` says what is missing";

fn failed(action: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> BpfError {
    move |reason| BpfError { action: action.into(), reason, hint: HINT }
}

/// A loaded BPF object with its programs attached for as long as it lives.
pub(crate) struct Loaded {
    object: Object,
    links: Vec<Link>,
}

impl Loaded {
    /// Loads an object whose map `settings` gets the given value before anything can run.
    pub(crate) fn load(name: &str, bytes: &[u8], settings: &impl Pod) -> Result<Loaded, BpfError> {
        // A refused program's verifier log is long, and of use only to who looks for it.
        libbpf_rs::set_print(Some((PrintLevel::Debug, |_, text| tracing::debug!("{}", text.trim_end()))));
        let object = ObjectBuilder::default()
            .name(name)
            .and_then(|builder| builder.open_memory(bytes))
            .and_then(|open| open.load())
            .map_err(failed(format!("load the programs of '{name}'")))?;
        let loaded = Loaded { object, links: Vec::new() };
        loaded
            .map("settings")?
            .update(&0u32.to_ne_bytes(), bytemuck::bytes_of(settings), MapFlags::ANY)
            .map_err(failed("write its settings"))?;
        Ok(loaded)
    }

    /// Attaches every program of the object to a cgroup, until that is removed: also beyond the end of this process.
    pub(crate) fn attach_for_the_life_of(&self, cgroup: impl AsFd) -> Result<(), BpfError> {
        let cgroup = cgroup.as_fd().as_raw_fd();
        for program in self.object.progs() {
            let (descriptor, kind) = (program.as_fd().as_raw_fd(), program.attach_type() as u32);
            // SAFETY: takes numbers only; both descriptors are open for the length of the call.
            let result = unsafe {
                libbpf_rs::libbpf_sys::bpf_prog_attach(
                    descriptor,
                    cgroup,
                    kind,
                    libbpf_rs::libbpf_sys::BPF_F_ALLOW_MULTI,
                )
            };
            if result < 0 {
                let name = program.name().to_string_lossy().into_owned();
                let error = libbpf_rs::Error::from_raw_os_error(-result);
                return Err(failed(format!("attach '{name}' to a cgroup"))(error));
            }
        }
        Ok(())
    }

    /// Attaches every program of the object to a cgroup, for as long as this value lives.
    pub(crate) fn attach(&mut self, cgroup: impl AsFd) -> Result<(), BpfError> {
        let cgroup = cgroup.as_fd().as_raw_fd();
        for program in self.object.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            let link =
                program.attach_cgroup(cgroup).map_err(failed(format!("attach '{name}' to a cgroup")))?;
            self.links.push(link);
        }
        Ok(())
    }

    /// Detaches what [`attach`](Self::attach) attached; the maps remain.
    pub(crate) fn detach(&mut self) {
        self.links.clear();
    }

    /// A handle of one of the object's maps.
    pub(crate) fn map(&self, name: &str) -> Result<MapHandle, BpfError> {
        let map = self.object.maps().find(|map| map.name() == name);
        let map =
            map.ok_or_else(|| libbpf_rs::Error::from(std::io::Error::from(std::io::ErrorKind::NotFound)));
        map.and_then(|map| MapHandle::try_from(&map)).map_err(failed(format!("open the map '{name}'")))
    }
}

/// The number by which the kernel knows a map.
pub(crate) fn id(map: &MapHandle) -> Result<u32, BpfError> {
    map.info().map(|info| info.info.id).map_err(failed("ask for a map's number"))
}

/// The value under a key, if there is one.
pub(crate) fn lookup<V: Pod>(map: &MapHandle, key: &[u8]) -> Result<Option<V>, BpfError> {
    let value = map.lookup(key, MapFlags::ANY).map_err(failed("read a map"))?;
    // It may hold keys.
    Ok(value.map(Zeroizing::new).map(|bytes| bytemuck::pod_read_unaligned(&bytes)))
}
