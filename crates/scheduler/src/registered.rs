//! A scheduler of one process, which ends with it.

use std::fmt;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process;
use std::sync::Mutex;

use libbpf_rs::libbpf_sys::BPF_TCX_EGRESS;
use libbpf_rs::{Link, MapCore as _, MapHandle, MapType, Object};
use plait_congestion::{Error, part};
use plait_linux::bpf_link;

use crate::{SchedulerConfig, object, options};

/// A scheduler that sockets can select by its name (`TCP_CONGESTION`) until this is dropped or the process ends, however it
/// ends. Connections that use it then keep it until they are closed.
pub struct Registered {
    name: String,
    path_options: MapHandle,
    targets: MapHandle,
    _link: Mutex<Link>,
    /// To interfaces.
    links: Vec<OwnedFd>,
}

impl Registered {
    /// Registers a scheduler under a name of this process. The rates of paths are measured without new data by the interfaces
    /// that exist now, if the kernel has TCX (Linux 6.6).
    ///
    /// # Errors
    /// [`Error::Missing`], or [`Error::Kernel`], also if this process has registered it already.
    pub fn new(configuration: &SchedulerConfig) -> Result<Registered, Error> {
        let scheduler = configuration.scheduler();
        let name = scheduler.kernel_name_of_process(process::id());
        let mut loaded = object::load(configuration, &name)?;
        let path_options = handle(&loaded, object::PATH_OPTIONS)?;
        let targets = handle(&loaded, object::TARGETS)?;
        options::write(configuration, &path_options, &targets)?;
        let links = attach_to_interfaces(&loaded)?;
        let mut map = loaded
            .maps_mut()
            .find(|map| map.map_type() == MapType::StructOps)
            .ok_or_else(object::not_found)?;
        let link = map.attach_struct_ops().map_err(Error::kernel("register the scheduler"))?;
        Ok(Registered { name, path_options, targets, _link: Mutex::new(link), links })
    }

    /// Replaces the options of paths, of existing connections too.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn set_options(&self, configuration: &SchedulerConfig) -> Result<(), Error> {
        options::write(configuration, &self.path_options, &self.targets)
    }

    /// The descriptors that it takes.
    pub fn descriptors(&self) -> usize {
        // The maps, the link and one of its own.
        4 + self.links.len()
    }

    /// Its name in the kernel.
    pub fn name(&self) -> &str {
        &self.name
    }
}

fn handle(loaded: &Object, name: &str) -> Result<MapHandle, Error> {
    let map = loaded.maps().find(|map| map.name() == name).ok_or_else(object::not_found)?;
    MapHandle::try_from(&map).map_err(Error::kernel("open the options of the scheduler"))
}

fn attach_to_interfaces(loaded: &Object) -> Result<Vec<OwnedFd>, Error> {
    let program = part(loaded, object::FILL)?;
    let links = bpf_link::attach_to_all(program.as_fd(), BPF_TCX_EGRESS).unwrap_or_else(|error| {
        tracing::debug!("the scheduler is not attached to interfaces: {error}");
        Vec::new()
    });
    Ok(links.into_iter().map(|(_, link)| link).collect())
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registered").field(&self.name).finish()
    }
}
