//! Services: programs that run on a host for the lifetime of the lab, with a readiness check.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::SmallRng;

use crate::error::Error;
use crate::host::Host;
use crate::process::{Process, command_line, path_with_plait};
use crate::seed::Seed;
use crate::topology::{self, Program};
use plait_linux::signal::StopSignal;

/// How long a service may take to become ready.
const START_LIMIT: Duration = Duration::from_secs(15);

/// A service of a lab, which ends it.
#[derive(Debug)]
pub struct Service {
    name: String,
    host: String,
    command: String,
    port: Option<u16>,
    directory: PathBuf,
    process: Process,
}

impl Service {
    /// Starts the service and waits until it is ready. Its files and output are in a directory of its name in
    /// `scratch`.
    pub(crate) fn start(
        spec: &topology::Service,
        host: &Host,
        scratch: &Path,
        seed: Seed,
        stop: &StopSignal,
    ) -> Result<Self, Error> {
        let directory = scratch.join(&spec.name);
        fs::create_dir(&directory).map_err(|source| Error::File { path: directory.clone(), source })?;
        let mut arguments = arguments(spec, &directory, seed)?;
        if spec.mptcp {
            arguments.splice(0..0, ["mptcpize".into(), "run".into()]);
        }
        let mut command = host.command(&arguments[0]);
        command.args(&arguments[1..]).env("PATH", path_with_plait());
        let command_line = command_line(&command);
        let mut process = Process::start_logged(command, stop.clone(), &directory)?;
        if let Some(port) = spec.port {
            process.wait_until_listening(port, START_LIMIT)?;
        }
        if let Some(arguments) = &spec.ready {
            let what = format!("`{}` to end well", arguments.join(" "));
            process.wait_until(&what, START_LIMIT, |_| succeeds(arguments, host))?;
        }
        let (name, host) = (spec.name.clone(), spec.host.clone());
        Ok(Self { name, host, command: command_line, port: spec.port, directory, process })
    }

    /// The service's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of its host.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The command line.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The TCP port that it listens on, if any.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// The directory of its files, with its output in `stdout` and `stderr`.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether it is still running.
    pub fn is_running(&self) -> bool {
        self.process.is_running()
    }
}

fn arguments(spec: &topology::Service, directory: &Path, seed: Seed) -> Result<Vec<OsString>, Error> {
    let port = spec.port.map(|port| port.to_string()).unwrap_or_default();
    Ok(match &spec.program {
        Program::Command(arguments) => arguments.iter().map(OsString::from).collect(),
        Program::Iperf3 => ["iperf3", "-s", "-p", &port].map(OsString::from).into(),
        Program::Serve { listen, to, mode } => {
            let listen = listen.to_string();
            let mut arguments = vec![plait()];
            arguments.extend(["serve", "--listen", &listen, "--to", to].map(OsString::from));
            arguments.extend(mode.iter().flat_map(|mode| ["--mode".into(), OsString::from(mode)]));
            arguments
        }
        Program::Nginx { document } => {
            let configuration = directory.join("nginx.conf");
            let created = fs::create_dir(directory.join("www"))
                .and_then(|()| {
                    random_file(&directory.join("www/document"), *document, seed.generator(&spec.name))
                })
                .and_then(|()| fs::write(&configuration, nginx_configuration(directory, &port)));
            created.map_err(|source| Error::File { path: directory.to_owned(), source })?;
            let configuration = configuration.into_os_string();
            vec!["nginx".into(), "-e".into(), "stderr".into(), "-c".into(), configuration]
        }
    })
}

fn succeeds(arguments: &[String], host: &Host) -> Result<bool, Error> {
    let mut command = host.command(&arguments[0]);
    command.args(&arguments[1..]).env("PATH", path_with_plait());
    match host.spawn(command)?.finish(START_LIMIT) {
        Ok(_) => Ok(true),
        Err(Error::Failed { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// This executable if it is plait, else `plait` from `PATH`.
fn plait() -> OsString {
    let own =
        std::env::current_exe().ok().filter(|path| path.file_name().is_some_and(|name| name == "plait"));
    own.map_or_else(|| "plait".into(), PathBuf::into_os_string)
}

fn random_file(path: &Path, size: u64, mut random: SmallRng) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut left = size;
    let mut block = vec![0; 1 << 16];
    while left > 0 {
        let length = left.min(block.len() as u64) as usize;
        random.fill(&mut block[..length]);
        file.write_all(&block[..length])?;
        left -= length as u64;
    }
    Ok(())
}

/// The configuration of an nginx that serves the files in `directory/www` and writes only below `directory`. It runs
/// as root, because only root may read there.
fn nginx_configuration(directory: &Path, port: &str) -> String {
    let directory = directory.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("    {kind}_temp_path {directory}/{kind};\n"))
        .concat();
    format!(
        "daemon off;\nuser root;\nworker_processes 1;\npid {directory}/nginx.pid;\nerror_log stderr;\nevents {{}}\n\
         http {{\n{temporary}    access_log off;\n    sendfile on;\n    \
         server {{\n        listen {port};\n        listen [::]:{port};\n        root {directory}/www;\n    }}\n}}\n"
    )
}
