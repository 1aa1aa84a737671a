//! The full-screen view: samples and keys, until the user has seen enough.
//!
//! The terminal is given back as it was, also after a panic (by a hook of ratatui) and when asked to stop by a signal.

use std::env;
use std::io;
use std::time::{Duration, Instant};

use anyhow::Context;
use plait_linux::diag::{Growth, Watch};
use plait_linux::signal::StopSignal;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use super::keys::{Next, press};
use super::list::List;
use super::screen::{Look, draw, page};
use super::view::View;

pub(super) fn run(interval: Duration) -> anyhow::Result<()> {
    let stop = StopSignal::listen().context("cannot listen for signals")?;
    // What can fail does so before there is a screen.
    let mut samples = Samples::start()?;
    let list = List::new(samples.take()?);
    let shown = ratatui::try_init()
        .context("cannot draw on this terminal")
        .and_then(|mut terminal| show(&mut terminal, list, samples, interval, &stop));
    let restored = ratatui::try_restore().context("cannot give the terminal back as it was");
    shown.and(restored)
}

fn show(
    terminal: &mut DefaultTerminal,
    mut list: List,
    mut samples: Samples,
    interval: Duration,
    stop: &StopSignal,
) -> anyhow::Result<()> {
    let look = Look { colour: env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) };
    let mut due = Instant::now() + interval;
    let mut changed = true;
    while !stop.is_requested() {
        if std::mem::take(&mut changed) {
            terminal.draw(|frame| draw(frame, &list, look)).context("cannot draw on the terminal")?;
        }
        let wait = due.saturating_duration_since(Instant::now()).min(PATIENCE);
        if poll(wait).context("cannot read from the terminal")? {
            changed = true;
            match event::read().context("cannot read from the terminal")? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    let page = page(terminal.size().map_or(0, |size| size.height));
                    if press(&mut list, key, page) == Next::Quit {
                        break;
                    }
                }
                // The next draw looks for the new size.
                _ => {}
            }
        }
        if Instant::now() >= due && !list.paused {
            list.update(samples.take()?);
            changed = true;
            due = Instant::now() + interval;
        }
    }
    Ok(())
}

/// Whether there is an event within this time; a signal ends the waiting.
fn poll(wait: Duration) -> io::Result<bool> {
    match event::poll(wait) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        other => other,
    }
}

struct Samples {
    watch: Watch,
    growth: Growth,
    last: Instant,
}

impl Samples {
    fn start() -> anyhow::Result<Samples> {
        Ok(Samples { watch: Watch::open()?, growth: Growth::default(), last: Instant::now() })
    }

    fn take(&mut self) -> anyhow::Result<View> {
        let samples = self.watch.sample()?;
        let elapsed = self.last.elapsed();
        self.last = Instant::now();
        let grown = self.growth.since_last(&samples).unwrap_or_default();
        Ok(View::new(samples, &grown, elapsed))
    }
}

/// How late a signal may be noticed.
const PATIENCE: Duration = Duration::from_millis(100);
