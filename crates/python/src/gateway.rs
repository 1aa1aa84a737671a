//! `plait.connect` and `plait.serve`: a gateway within this process. Sockets are passed to Python as file descriptors.

use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::IntoRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use plait_config::Role;
use plait_gateway::{
    ConnectError, Gateway as Gate, Identities, Listener as Accepting, NegotiationSignal, Outbound, PeerName,
    ProtectionPolicy, REKEY_AFTER, Redundancy, Requirement, Roles, ServiceName, Settings, StartError, Stream,
    Trust,
};
use plait_proto::codec::records::Padding;
use plait_proto::identity::PublicKey;
use plait_proto::option::Mode;
use plait_proto::sealed::Exporter;
use pyo3::create_exception;
use pyo3::exceptions::{PyConnectionError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::runtime::Runtime;

create_exception!(plait, ProtectionError, PyConnectionError, "The connection is not protected as required.");

/// How often Python's signals are checked while waiting.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("ProtectionError", module.py().get_type::<ProtectionError>())?;
    module.add_class::<Gateway>()?;
    module.add_class::<Listener>()?;
    module.add_class::<KeyExporter>()
}

/// File descriptor, the peer's address and port, mode, level, how the peer was authenticated, and what exports keys.
type NativeConnection = (i32, String, u16, String, Option<String>, Option<String>, Option<KeyExporter>);

/// A running gateway.
#[pyclass(frozen, module = "plait._plait")]
struct Gateway {
    runtime: Arc<Runtime>,
    gateway: Arc<Gate>,
    outbound: Option<Arc<Outbound>>,
}

#[pymethods]
impl Gateway {
    /// Starts a gateway. `roles` are interfaces and whether they are trusted, `None` for a gateway that only accepts. `pins`
    /// are peers and their keys, `trust` is the rule for other peers. `service` is what clients may ask for; empty: the port.
    #[new]
    #[allow(clippy::too_many_arguments, reason = "Python's side gives them names")]
    fn new(
        py: Python<'_>,
        mode: &str,
        require: Option<&str>,
        roles: Option<Vec<(String, bool)>>,
        drain: f64,
        identity: Option<PathBuf>,
        trust: Option<&str>,
        pins: Vec<(String, String)>,
        clients: Option<Vec<String>>,
        hybrid: bool,
        service: Vec<String>,
        pad: Option<i64>,
        rekey_after: Option<f64>,
        redundant: Option<&str>,
    ) -> PyResult<Self> {
        let mode: Mode = mode.parse().map_err(value_error)?;
        let requirement = match require {
            None => None,
            Some("mode") => Some(Requirement::Mode),
            Some(paths) => {
                Some(paths.parse::<Requirement>().map_err(|error| value_error(format!("require: {error}")))?)
            }
        };
        let drain = Duration::try_from_secs_f64(drain).map_err(value_error)?;
        let pin = |(peer, key): (String, String)| {
            Ok((
                peer.parse::<PeerName>().map_err(value_error)?,
                key.parse::<PublicKey>().map_err(value_error)?,
            ))
        };
        let pins = pins.into_iter().map(pin).collect::<PyResult<_>>()?;
        let clients = clients
            .map(|clients| clients.iter().map(|key| key.parse::<PublicKey>()).collect::<Result<Vec<_>, _>>());
        let clients = clients.transpose().map_err(value_error)?;
        let named = |text: &String| {
            text.parse::<ServiceName>().map_err(|error| value_error(format!("service: {error}")))
        };
        let services = service.iter().map(named).collect::<PyResult<_>>()?;
        let padding = pad.map(Padding::try_from).transpose().map_err(value_error)?;
        let rekey_after = rekey_after.map(Duration::try_from_secs_f64).transpose().map_err(value_error)?;
        if let Some(time) = rekey_after.filter(|time| !REKEY_AFTER.contains(time)) {
            return Err(value_error(format!("expected rekey_after from 1 to 3600 seconds, got {time:?}")));
        }
        let redundancy = redundant.map(str::parse::<Redundancy>).transpose();
        let redundancy = redundancy.map_err(|error| value_error(format!("redundant: {error}")))?;
        let trust = trust.map(str::parse::<Trust>).transpose().map_err(value_error)?;
        let identities = Identities::new(identity.as_deref(), trust, pins, clients);
        let settings = Settings {
            command: "library",
            opens_connections: true,
            policy: ProtectionPolicy::new(mode, requirement).map_err(value_error)?,
            signal: NegotiationSignal::Option,
            identities: identities.map_err(|error| PyOSError::new_err(error.to_string()))?,
            hybrid,
            padding,
            rekey_after,
            redundancy,
            services,
            congestion_control: None,
            scheduler: None,
            max_connections: 4096,
            max_connections_per_peer: 1024,
            drain,
            monitor: None,
        };
        py.detach(|| {
            let runtime = Runtime::new()?;
            let started = runtime.block_on(async {
                let gateway = Gate::start(settings)?;
                gateway.publish();
                let outbound = roles.map(|named| {
                    let mut roles = Roles::default();
                    for (interface, trusted) in named {
                        roles.set(&interface, if trusted { Role::Trusted } else { Role::Untrusted });
                    }
                    Outbound::start(&gateway, roles).map(Arc::new)
                });
                Ok::<_, StartError>((gateway, outbound.transpose()?))
            });
            let (gateway, outbound) = started.map_err(|error| PyOSError::new_err(error.to_string()))?;
            Ok(Gateway { runtime: Arc::new(runtime), gateway, outbound })
        })
    }

    /// Connects to the first address of a host that answers.
    fn connect(&self, py: Python<'_>, host: &str, port: u16) -> PyResult<NativeConnection> {
        let outbound = self.outbound.clone();
        let outbound = outbound.ok_or_else(|| value_error("this gateway only accepts connections"))?;
        let opened = wait(py, &self.runtime, async move {
            let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
            outbound.connect(&PeerName::new(host, port), &addresses).await
        })?;
        into_native(opened.map_err(connect_error)?)
    }

    /// Listens on an address.
    fn listen(&self, host: &str, port: u16) -> PyResult<Listener> {
        let address = SocketAddr::new(host.parse().map_err(value_error)?, port);
        let _inside = self.runtime.enter();
        let accepting =
            self.gateway.listen(address).map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Listener { runtime: Arc::clone(&self.runtime), accepting })
    }

    /// Stops: waits for connections to close, up to the drain time, and resets the rest.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let gateway = Arc::clone(&self.gateway);
        wait(py, &self.runtime, async move { gateway.shut_down().await })
    }
}

/// A listening socket.
#[pyclass(module = "plait._plait")]
struct Listener {
    runtime: Arc<Runtime>,
    accepting: Accepting,
}

#[pymethods]
impl Listener {
    /// The address it listens on.
    #[getter]
    fn address(&self) -> (String, u16) {
        let address = self.accepting.local_addr();
        (address.ip().to_string(), address.port())
    }

    /// The next connection; `None` once the gateway has stopped, or after `timeout` seconds.
    fn accept(&mut self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<NativeConnection>> {
        let limit = timeout.map(Duration::try_from_secs_f64).transpose().map_err(value_error)?;
        let accepting = &mut self.accepting;
        let accepted = wait(py, &self.runtime, async move {
            match limit {
                Some(limit) => tokio::time::timeout(limit, accepting.accept()).await.ok().flatten(),
                None => accepting.accept().await,
            }
        })?;
        accepted.map(into_native).transpose()
    }
}

/// Exports keys of a connection.
#[pyclass(module = "plait._plait", frozen)]
struct KeyExporter(Exporter);

#[pymethods]
impl KeyExporter {
    /// The key of this length for a label and a context.
    fn export<'py>(
        &self,
        py: Python<'py>,
        label: &str,
        context: &[u8],
        length: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let key = self.0.export(label, context, length).map_err(value_error)?;
        Ok(PyBytes::new(py, &key))
    }
}

/// Waits without holding the GIL; Ctrl-C interrupts it.
fn wait<T: Send>(py: Python<'_>, runtime: &Runtime, work: impl Future<Output = T> + Send) -> PyResult<T> {
    py.detach(|| {
        runtime.block_on(async {
            let mut work = std::pin::pin!(work);
            loop {
                match tokio::time::timeout(SIGNAL_INTERVAL, &mut work).await {
                    Ok(done) => return Ok(done),
                    Err(_) => Python::attach(|py| py.check_signals())?,
                }
            }
        })
    })
}

fn into_native(stream: Stream) -> PyResult<NativeConnection> {
    let (peer, mode) = (stream.peer(), stream.mode().to_string());
    let (level, identity) = (stream.level(), stream.identity());
    let exporter = stream.exporter().cloned().map(KeyExporter);
    let socket = stream.into_socket().into_std()?;
    socket.set_nonblocking(false)?;
    Ok((socket.into_raw_fd(), peer.ip().to_string(), peer.port(), mode, level, identity, exporter))
}

fn connect_error(error: ConnectError) -> PyErr {
    match error {
        ConnectError::Connect(error) => error.into(),
        ConnectError::Refused(why) => ProtectionError::new_err(why),
    }
}

fn value_error(what: impl ToString) -> PyErr {
    PyValueError::new_err(what.to_string())
}
