//! A scheduler of one process, which ends with it.

use std::fmt;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process;
use std::sync::Mutex;

use libbpf_rs::libbpf_sys::BPF_TCX_EGRESS;
use libbpf_rs::{Link, MapCore as _, MapType, Object};
use plait_congestion::{Error, part};
use plait_linux::bpf_link;

use crate::{SchedulerConfig, object, options};

/// A scheduler that sockets can select by its name (`TCP_CONGESTION`) until this is dropped or the process ends, however it
/// ends. Connections that use it then keep it until they are closed.
pub struct Registered {
    name: String,
    _link: Mutex<Link>,
    /// To interfaces.
    _links: Vec<OwnedFd>,
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
        write_options(configuration, &loaded)?;
        let links = attach_to_interfaces(&loaded)?;
        let mut map = loaded
            .maps_mut()
            .find(|map| map.map_type() == MapType::StructOps)
            .ok_or_else(object::not_found)?;
        let link = map.attach_struct_ops().map_err(Error::kernel("register the scheduler"))?;
        Ok(Registered { name, _link: Mutex::new(link), _links: links })
    }

    /// Its name in the kernel.
    pub fn name(&self) -> &str {
        &self.name
    }
}

fn write_options(configuration: &SchedulerConfig, loaded: &Object) -> Result<(), Error> {
    let find = |name| loaded.maps().find(|map| map.name() == name).ok_or_else(object::not_found);
    options::write(configuration, &find(object::PATH_OPTIONS)?, &find(object::TARGETS)?)
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
