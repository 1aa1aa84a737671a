//! Programs that run on a host as long as the lab, ready when their port listens, or another program says so.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::path_with_plait;
use crate::topology::{self, Program};
use crate::{Error, Host, Process};
use plait_linux::signal::StopSignal;

/// How long a service may take until it is ready.
const START_LIMIT: Duration = Duration::from_secs(15);

/// A service of a lab, ended with it.
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
    /// Starts it and waits until it is ready. Its files, and what it writes, go to the directory of its name in `scratch`.
    pub(crate) fn start(
        spec: &topology::Service,
        host: &Host,
        scratch: &Path,
        interrupt: &StopSignal,
    ) -> Result<Self, Error> {
        let directory = scratch.join(&spec.name);
        fs::create_dir(&directory).map_err(|source| Error::File { path: directory.clone(), source })?;
        let mut words = words(spec, &directory)?;
        if spec.mptcp {
            words.splice(0..0, ["mptcpize".into(), "run".into()]);
        }
        let mut command = host.command(&words[0]);
        command.args(&words[1..]).env("PATH", path_with_plait());
        let shown = shown(&command);
        let mut process = Process::start_logged(command, interrupt.clone(), &directory)?;
        if let Some(port) = spec.port {
            process.wait_until_listening(port, START_LIMIT)?;
        }
        if let Some(words) = &spec.ready {
            let what = format!("`{}` to end well", words.join(" "));
            process.wait_until(&what, START_LIMIT, |_| ends_well(words, host))?;
        }
        let (name, host) = (spec.name.clone(), spec.host.clone());
        Ok(Self { name, host, command: shown, port: spec.port, directory, process })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of its host.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its command line.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The TCP port that it was waited for to listen on.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Where its files are, with what it writes in `stdout` and `stderr`.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether it still runs.
    pub fn is_running(&self) -> bool {
        self.process.is_running()
    }
}

fn words(spec: &topology::Service, directory: &Path) -> Result<Vec<OsString>, Error> {
    let port = spec.port.map(|port| port.to_string()).unwrap_or_default();
    Ok(match &spec.program {
        Program::Command(words) => words.iter().map(OsString::from).collect(),
        Program::Iperf3 => ["iperf3", "-s", "-p", &port].map(OsString::from).into(),
        Program::Serve { listen, to, mode } => {
            let listen = listen.to_string();
            let mut words = vec![plait()];
            words.extend(["serve", "--listen", &listen, "--to", to].map(OsString::from));
            words.extend(mode.iter().flat_map(|mode| ["--mode".into(), OsString::from(mode)]));
            words
        }
        Program::Nginx { document } => {
            let configuration = directory.join("nginx.conf");
            let made = fs::create_dir(directory.join("www"))
                .and_then(|()| random_file(&directory.join("www/document"), *document))
                .and_then(|()| {
                    fs::write(
                        &configuration,
                        nginx_configuration(directory, &[&port, &format!("[::]:{port}")]),
                    )
                });
            made.map_err(|source| Error::File { path: directory.to_owned(), source })?;
            let configuration = configuration.into_os_string();
            vec!["nginx".into(), "-e".into(), "stderr".into(), "-c".into(), configuration]
        }
    })
}

fn ends_well(words: &[String], host: &Host) -> Result<bool, Error> {
    let mut command = host.command(&words[0]);
    command.args(&words[1..]).env("PATH", path_with_plait());
    match host.spawn(command)?.finish(START_LIMIT) {
        Ok(_) => Ok(true),
        Err(Error::Failed { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// This program, if it is plait's command; another one finds that by its name.
fn plait() -> OsString {
    let own =
        std::env::current_exe().ok().filter(|path| path.file_name().is_some_and(|name| name == "plait"));
    own.map_or_else(|| "plait".into(), PathBuf::into_os_string)
}

fn random_file(path: &Path, size: u64) -> io::Result<()> {
    let mut random = File::open("/dev/urandom")?.take(size);
    io::copy(&mut random, &mut File::create(path)?).map(drop)
}

/// The configuration of an nginx that gives out the files below `www` in `directory`, where all that it writes stays; as
/// root, because nobody else may read there. It listens at each of `listen`, as nginx's directive of this name takes it.
pub fn nginx_configuration(directory: &Path, listen: &[&str]) -> String {
    let directory = directory.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("    {kind}_temp_path {directory}/{kind};\n"))
        .concat();
    let listen: String = listen.iter().map(|address| format!("        listen {address};\n")).collect();
    format!(
        "daemon off;\nuser root;\nworker_processes 1;\npid {directory}/nginx.pid;\nerror_log stderr;\nevents {{}}\n\
         http {{\n{temporary}    access_log off;\n    sendfile on;\n    \
         server {{\n{listen}        root {directory}/www;\n    }}\n}}\n"
    )
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
