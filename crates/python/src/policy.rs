//! `plait.policy`: the policy engine, and the host's side of the loop that controllers run in. Documents cross as JSON,
//! policies as TOML, which `python/plait` makes data classes of.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use plait_linux::interfaces;
use plait_linux::mptcp::Token;
use plait_linux::pm::Local;
use plait_policy::controller::{self, Action, default_expiry};
use plait_policy::engine::{self, Event, EventKind, FourTuple};
use plait_policy::{Engine, Policy, Rate};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::json;

create_exception!(plait.policy, Error, PyException, "What the host refused to do for a policy.");
create_exception!(
    plait.policy,
    Mistake,
    PyValueError,
    "A policy that cannot be: where, what was expected, and what found."
);
create_exception!(plait.policy, Replaced, Error, "Another controller has taken over the name of this one.");

/// How often signals are looked for while events are waited for.
const SIGNALS: Duration = Duration::from_millis(100);

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("PolicyError", py.get_type::<Error>())?;
    module.add("PolicyMistake", py.get_type::<Mistake>())?;
    module.add("PolicyReplaced", py.get_type::<Replaced>())?;
    module.add_class::<Control>()?;
    module.add_class::<Events>()?;
    module.add_function(wrap_pyfunction!(check_policy, module)?)?;
    module.add_function(wrap_pyfunction!(load_policy, module)?)?;
    module.add_function(wrap_pyfunction!(unload_policy, module)?)?;
    module.add_function(wrap_pyfunction!(loaded_policies, module)?)?;
    module.add_function(wrap_pyfunction!(policy_statistics, module)?)?;
    module.add_function(wrap_pyfunction!(policy_flows, module)?)?;
    module.add_function(wrap_pyfunction!(guard_policy, module)?)
}

/// Says what is wrong with a policy's text, whose file is `name`.
#[pyfunction]
fn check_policy(text: &str, name: &str) -> PyResult<()> {
    parse(text, name).map(|_| ())
}

/// Loads a policy's text.
#[pyfunction]
fn load_policy(py: Python<'_>, text: &str, name: &str, replace: bool) -> PyResult<()> {
    let policy = parse(text, name)?;
    py.detach(|| {
        let engine = Engine::current()?;
        if replace { engine.replace(std::slice::from_ref(&policy)) } else { engine.load(&policy) }
    })
    .map_err(refused)
}

/// Unloads a policy.
#[pyfunction]
fn unload_policy(py: Python<'_>, name: &str) -> PyResult<()> {
    py.detach(|| Engine::current()?.unload(name)).map(|_| ()).map_err(refused)
}

/// The loaded policies: `[{"name", "text", "remaining", "absent"}]`.
#[pyfunction]
fn loaded_policies(py: Python<'_>) -> PyResult<String> {
    let loaded = py.detach(|| Engine::current()?.policies()).map_err(refused)?;
    let documents = loaded.iter().map(|loaded| {
        let remaining = loaded.remaining.map(|time| time.as_secs_f64());
        let (name, text) = (&loaded.policy.name, loaded.policy.to_string());
        json!({ "name": name, "text": text, "remaining": remaining, "absent": loaded.absent })
    });
    Ok(documents.collect::<serde_json::Value>().to_string())
}

/// What the loaded policies have counted.
#[pyfunction]
fn policy_statistics(py: Python<'_>) -> PyResult<String> {
    document(&py.detach(|| Engine::current()?.statistics()).map_err(refused)?)
}

/// The subflows that are remembered.
#[pyfunction]
fn policy_flows(py: Python<'_>) -> PyResult<String> {
    document(&py.detach(|| Engine::current()?.flows()).map_err(refused)?)
}

/// Waits until the policy of a controller has lapsed, and takes back what it leaves.
#[pyfunction]
fn guard_policy(py: Python<'_>, name: &str) -> PyResult<()> {
    py.detach(|| controller::guard(name)).map_err(ended)
}

/// What loaded policies tell while packets pass.
#[pyclass(unsendable)]
struct Events(Option<engine::Events>);

#[pymethods]
impl Events {
    /// Nothing comes if nothing is loaded.
    #[new]
    fn new(trace: bool) -> PyResult<Events> {
        let engine = Engine::current().map_err(refused)?;
        let events = if trace { engine.trace() } else { engine.events() };
        events.map(Events).map_err(refused)
    }

    /// The next event, and the keys that it tells, initiator's and responder's; `None` when the time is over.
    fn next(&mut self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Told>> {
        let Some(events) = &mut self.0 else { return Ok(None) };
        let mut left = timeout.map(seconds).transpose()?;
        loop {
            let step = left.map_or(SIGNALS, |left| left.min(SIGNALS));
            if let Some(event) = events.next(step).map_err(refused)? {
                return Ok(Some((document(&event)?, keys(&event))));
            }
            py.check_signals()?;
            left = left.map(|left| left - step);
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
        }
    }

    /// No more are told.
    fn close(&mut self) {
        self.0 = None;
    }
}

/// An event as JSON, and the keys that it told of.
type Told = (String, Option<(Vec<u8>, Option<Vec<u8>>)>);

fn keys(event: &Event) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let EventKind::Connection { keys: Some(keys) } = &event.kind else { return None };
    let responder = keys.responder.as_ref().map(|key| key.as_bytes().to_vec());
    Some((keys.initiator.as_bytes().to_vec(), responder))
}

/// One controller's hold on the host.
#[pyclass(unsendable)]
struct Control(Option<controller::Session>);

#[pymethods]
impl Control {
    /// `guard` are the words of a command that calls `guard_policy` with the name.
    #[new]
    fn new(name: &str, interval: f64, expiry: Option<f64>, guard: Vec<String>) -> PyResult<Control> {
        let expiry = expiry.map_or_else(|| seconds(interval).map(default_expiry), seconds)?;
        let mut control = controller::Session::start(name, expiry).map_err(ended)?;
        if let [program, words @ ..] = &guard[..] {
            let mut command = Command::new(program);
            command.args(words);
            control = control.with_guard(command);
        }
        Ok(Control(Some(control)))
    }

    /// What there is now.
    fn view(&mut self) -> PyResult<String> {
        document(&self.open()?.view().map_err(ended)?)
    }

    /// Makes these chains and other actions hold; what the path manager refused.
    fn apply(&mut self, chains: &str, others: &str) -> PyResult<Vec<String>> {
        let chains = parse(chains, "the controller's chains")?.chains;
        let others: Vec<Asked> =
            serde_json::from_str(others).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let mut actions: Vec<Action> = chains.into_iter().map(Action::Chain).collect();
        for asked in others {
            actions.push(asked.action()?);
        }
        let refused = self.open()?.apply(&actions).map_err(ended)?;
        Ok(refused.iter().map(ToString::to_string).collect())
    }

    /// Takes back what holds.
    fn close(&mut self) -> PyResult<()> {
        self.0.take().map_or(Ok(()), |control| control.finish().map_err(ended))
    }
}

impl Control {
    fn open(&mut self) -> PyResult<&mut controller::Session> {
        self.0.as_mut().ok_or_else(|| Error::new_err("the controller has ended"))
    }
}

/// An action that is no chain.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Asked {
    Pace {
        local: SocketAddr,
        remote: SocketAddr,
        rate: String,
    },
    Limit {
        local: SocketAddr,
        remote: SocketAddr,
        rate: String,
    },
    Backup {
        local: SocketAddr,
        remote: SocketAddr,
    },
    Create {
        token: Token,
        local: IpAddr,
        remote: SocketAddr,
        id: u8,
        interface: Option<String>,
        backup: bool,
        remote_id: u8,
    },
    Remove {
        token: Token,
        local: SocketAddr,
        remote: SocketAddr,
    },
}

impl Asked {
    fn action(self) -> PyResult<Action> {
        let rate = |text: String| text.parse::<Rate>().map_err(|error| Mistake::new_err(error.to_string()));
        Ok(match self {
            Asked::Pace { local, remote, rate: text } => {
                Action::Pace { subflow: FourTuple { local, remote }, rate: rate(text)? }
            }
            Asked::Limit { local, remote, rate: text } => {
                Action::Limit { subflow: FourTuple { local, remote }, rate: rate(text)? }
            }
            Asked::Backup { local, remote } => Action::Backup { subflow: FourTuple { local, remote } },
            Asked::Create { token, local, remote, id, interface, backup, remote_id } => {
                let if_index = interface.map_or(Ok(0), |name| index(&name))?;
                let local = Local { address: local, id, if_index, backup };
                Action::Create { token, local, remote, remote_id }
            }
            Asked::Remove { token, local, remote } => {
                Action::Remove { token, subflow: FourTuple { local, remote } }
            }
        })
    }
}

fn index(name: &str) -> PyResult<u32> {
    let interfaces = interfaces::interfaces().map_err(|error| Error::new_err(error.to_string()))?;
    let found = interfaces.iter().find(|interface| interface.name == name);
    let names = || interfaces.iter().map(|interface| interface.name.as_str()).collect::<Vec<_>>().join(", ");
    found
        .map(|interface| interface.index)
        .ok_or_else(|| Error::new_err(format!("expected one of the interfaces {}, found '{name}'", names())))
}

fn parse(text: &str, name: &str) -> PyResult<Policy> {
    Policy::parse(text, name).map_err(|error| mistake(&error))
}

fn mistake(error: &impl std::fmt::Display) -> PyErr {
    Mistake::new_err(error.to_string())
}

fn refused(error: engine::EngineError) -> PyErr {
    match error {
        engine::EngineError::StoredPolicy(error) => mistake(&error),
        engine::EngineError::InvalidPolicy(error) => mistake(&error),
        error => Error::new_err(error.to_string()),
    }
}

fn ended(error: controller::ControllerError) -> PyErr {
    match error {
        controller::ControllerError::Policy(error) => mistake(&error),
        controller::ControllerError::Engine(error) => refused(error),
        controller::ControllerError::Replaced(_) => Replaced::new_err(error.to_string()),
        error => Error::new_err(error.to_string()),
    }
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("expected a number of seconds, found {seconds}")))
}

fn document(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyValueError::new_err(error.to_string()))
}
