//! `plait generate`: man pages and shell completions, for packages.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::Cli;
use crate::examples::{self, Example};
use crate::version::Version;

/// Arguments of `plait generate`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A directory such as /usr/share: below it, the files are written to where programs look for them
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Where shells look for completions, below /usr/share.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/plait"),
    (Shell::Zsh, "zsh/site-functions/_plait"),
    (Shell::Fish, "fish/vendor_completions.d/plait.fish"),
];

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    for (path, command) in commands() {
        let name = page_name(&path);
        write(&args.directory.join(format!("man/man1/{name}.1")), &man_page(&path, command)?)?;
    }
    for (shell, file) in COMPLETIONS {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "plait", &mut script);
        write(&args.directory.join(file), &script)?;
    }
    Ok(())
}

/// All commands that help shows, with their paths below `plait`, such as "lab run".
pub(crate) fn commands() -> Vec<(String, Command)> {
    let mut cli = Cli::command().disable_help_subcommand(true);
    cli.build();
    commands_below(String::new(), cli)
}

fn commands_below(path: String, command: Command) -> Vec<(String, Command)> {
    let shown: Vec<_> = command.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    let mut commands = vec![(path.clone(), command)];
    for command in shown {
        let path = format!("{path} {}", command.get_name()).trim_start().to_owned();
        commands.extend(commands_below(path, command));
    }
    commands
}

fn page_name(path: &str) -> String {
    format!("plait {path}").trim_end().replace(' ', "-")
}

fn man_page(path: &str, command: Command) -> io::Result<Vec<u8>> {
    let version = Version::of_this_program();
    let day = version.date.as_deref().map_or("", |date| &date[..10]);
    let (has_subcommands, notes) = (command.has_subcommands(), command.get_after_help().is_some());
    let man = Man::new(command).title(page_name(path)).date(day);
    let man = man.source(format!("plait {}", version.version)).manual("plait");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if has_subcommands {
        man.render_subcommands_section(&mut page)?;
    }
    man.render_options_section(&mut page)?;
    if notes {
        man.render_extra_section(&mut page)?;
    }
    examples_section(examples::of(path), &mut page)?;
    see_also_section(path, &mut page)?;
    Ok(page)
}

fn examples_section(examples: &[Example], page: &mut Vec<u8>) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    for Example(line, purpose) in examples {
        roff.control("TP", []).text([bold(*line)]).text([roman(*purpose)]);
    }
    roff.to_writer(page)
}

/// The command that this one is part of.
fn see_also_section(path: &str, page: &mut Vec<u8>) -> io::Result<()> {
    let Some(parent) = path.rsplit_once(' ').map(|(parent, _)| parent).or((!path.is_empty()).then_some(""))
    else {
        return Ok(());
    };
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]).text([bold(page_name(parent)), roman("(1)")]);
    roff.to_writer(page)
}

fn write(file: &Path, content: &[u8]) -> anyhow::Result<()> {
    let directory = file.parent().context("expected a file in a directory")?;
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let written = fs::File::create(file).and_then(|mut file| file.write_all(content));
    written.with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;

    fn generate() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        run(&Args { directory: directory.path().to_owned() }).unwrap();
        directory
    }

    /// Runs a program, if it is installed.
    #[expect(clippy::print_stdout, reason = "how tests name what they skip")]
    fn output_of(command: &mut process::Command) -> Option<process::Output> {
        match command.output() {
            Ok(output) => Some(output),
            Err(error) => {
                println!("SKIP {}: it cannot be run: {error}", command.get_program().display());
                None
            }
        }
    }

    fn options(command: &Command) -> impl Iterator<Item = &str> {
        command.get_arguments().filter(|argument| !argument.is_hide_set()).filter_map(clap::Arg::get_long)
    }

    #[test]
    fn every_command_has_a_man_page_with_its_examples_and_options() {
        let directory = generate();
        let pages = directory.path().join("man/man1");
        for (path, command) in commands() {
            let page = fs::read_to_string(pages.join(page_name(&path) + ".1")).unwrap();
            // roff escapes hyphens.
            let page = page.replace("\\-", "-");
            for section in ["NAME", "SYNOPSIS", "OPTIONS", "EXAMPLES"] {
                assert!(page.contains(&format!("SH {section}")), "{path}: {section}: {page}");
            }
            for Example(line, _) in examples::of(&path) {
                assert!(page.contains(line), "{path}: {line}: {page}");
            }
            for option in options(&command) {
                assert!(page.contains(&format!("--{option}")), "{path}: {option}: {page}");
            }
        }
        assert_eq!(fs::read_dir(&pages).unwrap().count(), commands().len());
    }

    /// groff's opinion, as lintian asks for it.
    #[test]
    fn man_pages_are_correct() {
        let directory = generate();
        for page in fs::read_dir(directory.path().join("man/man1")).unwrap() {
            let page = page.unwrap().path();
            let mut man = process::Command::new("man");
            man.env("LC_ALL", "C.UTF-8").env("MANROFFSEQ", "").env("MANWIDTH", "80");
            man.args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"]).arg(&page);
            let Some(output) = output_of(&mut man) else { return };
            let warnings = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && warnings.is_empty(), "{}: {warnings}", page.display());
        }
    }

    /// What bash offers for `plait PATH <TAB>`.
    #[test]
    fn bash_completes_every_command() {
        const COMPLETE: &str = r#"source "$1"; shift; COMP_WORDS=("$@" ""); COMP_CWORD=$#; COMPREPLY=()
            _plait plait "" "${@: -1}"; echo "${COMPREPLY[@]}""#;
        let directory = generate();
        for (path, command) in commands() {
            let mut bash = process::Command::new("bash");
            bash.args(["-c", COMPLETE, "bash"]).arg(directory.path().join(COMPLETIONS[0].1)).arg("plait");
            let Some(output) = output_of(bash.args(path.split_whitespace())) else { return };
            let offered = String::from_utf8_lossy(&output.stdout);
            let offered: Vec<_> = offered.split_whitespace().collect();
            for below in command.get_subcommands().filter(|command| !command.is_hide_set()) {
                assert!(offered.contains(&below.get_name()), "{path}: {}: {offered:?}", below.get_name());
            }
            for option in options(&command) {
                assert!(offered.contains(&format!("--{option}").as_str()), "{path}: {option}: {offered:?}");
            }
        }
    }

    #[test]
    fn zsh_and_fish_accept_their_completions_which_name_every_command() {
        let directory = generate();
        for (shell, file) in &COMPLETIONS[1..] {
            let file = directory.path().join(file);
            let script = fs::read_to_string(&file).unwrap();
            for (path, command) in commands() {
                assert!(path.is_empty() || script.contains(command.get_name()), "{shell}: {path}");
            }
            if let Some(output) = output_of(process::Command::new(shell.to_string()).arg("-n").arg(&file)) {
                assert!(output.status.success(), "{shell}: {}", String::from_utf8_lossy(&output.stderr));
            }
        }
    }
}
