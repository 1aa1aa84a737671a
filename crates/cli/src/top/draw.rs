//! Draws the list.

use plait_config::pluralize;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::keyboard::HELP;
use super::list::{List, Row};
use super::table::{Column, connection_cell, si_before_unit, subflow_cell};

/// The colours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    pub(super) colour: bool,
}

/// The number of rows of the list that fit on a screen of this height.
pub(super) fn page(height: u16) -> usize {
    usize::from(height).saturating_sub(3)
}

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame, list: &List, theme: Theme) {
    let [title, headings, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let rows = list.rows();
    let columns = columns(body.width, &rows);
    frame.render_widget(Paragraph::new(title_line(list, theme)), title);
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Paragraph::new(heading_line(&columns)).style(reversed), headings);
    if rows.is_empty() {
        let text = match list.filter.is_empty() {
            true => "no MPTCP connection in this network namespace",
            false => "no connection or subflow matches the filter",
        };
        frame.render_widget(Paragraph::new(text), body);
    }
    let shown = rows.iter().skip(list.offset.min(rows.len())).take(usize::from(body.height));
    let lines: Vec<Line> = shown.map(|row| row_line(list, row, &columns, theme)).collect();
    if !lines.is_empty() {
        frame.render_widget(Paragraph::new(lines), body);
    }
    frame.render_widget(Paragraph::new(foot_line(list, rows.len(), usize::from(body.height))), foot);
    if list.help {
        draw_help(frame, body);
    }
}

fn title_line(list: &List, theme: Theme) -> Line<'static> {
    let connections = &list.snapshot.connections;
    let subflows: usize = connections.iter().map(|connection| connection.subflows.len()).sum();
    let sent = connections.iter().map(|connection| connection.sent_bps).sum();
    let received = connections.iter().map(|connection| connection.received_bps).sum();
    let mut spans = vec![
        Span::styled("plait top", Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!(
            "  {}, {}  sent {}bit/s  received {}bit/s  over {:.1} s",
            pluralize(connections.len(), "connection"),
            pluralize(subflows, "subflow"),
            si_before_unit(sent),
            si_before_unit(received),
            list.snapshot.interval_s
        )),
    ];
    if list.paused {
        let style = theme.coloured(Color::Yellow).add_modifier(Modifier::BOLD);
        spans.push(Span::styled("  paused", style));
    }
    Line::from(spans)
}

fn foot_line(list: &List, rows: usize, height: usize) -> String {
    if list.typing {
        return format!("filter: {}_", list.filter);
    }
    let reversed = if list.reversed { ", reversed" } else { "" };
    let mut text =
        format!("? help  q quit  / filter  space pause  s sort: {}{reversed}", list.sort_key.name());
    if !list.filter.is_empty() {
        text += &format!("  filter: {}", list.filter);
    }
    if rows > height {
        let last = (list.offset + height).min(rows);
        text += &format!("  rows {}-{last} of {rows}", list.offset + 1);
    }
    text
}

fn heading_line(columns: &[(Cell, usize)]) -> Line<'static> {
    let cells = columns.iter().map(|(cell, width)| match cell {
        Cell::Table(column) => padded(column.heading(), *width, column.is_numeric()),
        Cell::History => padded("history", *width, false),
    });
    Line::from(cells.collect::<Vec<_>>().join(" "))
}

fn row_line(list: &List, row: &Row, columns: &[(Cell, usize)], theme: Theme) -> Line<'static> {
    let style = match row {
        Row::Connection(_) => Style::new().add_modifier(Modifier::BOLD),
        Row::Subflow(view, _) if view.subflow.closed.is_some() || view.subflow.backup() => {
            Style::new().add_modifier(Modifier::DIM)
        }
        Row::Subflow(..) => Style::new(),
    };
    let mut spans = Vec::new();
    for (cell, width) in columns {
        let (text, own) = match (cell, row) {
            (Cell::Table(column), Row::Connection(view)) => {
                (padded(&connection_cell(view, *column), *width, column.is_numeric()), Style::new())
            }
            (Cell::Table(column), Row::Subflow(view, _)) => {
                let alarm = *column == Column::Retransmissions && view.interval_retransmissions > 0;
                let own = if alarm { theme.coloured(Color::Red) } else { Style::new() };
                (padded(&subflow_cell(view, *column), *width, column.is_numeric()), own)
            }
            (Cell::History, Row::Connection(_)) => (" ".repeat(*width), Style::new()),
            (Cell::History, Row::Subflow(view, max)) => {
                (sparkline(list.history(view.subflow.id), *max, *width), theme.coloured(Color::Cyan))
            }
        };
        spans.push(Span::styled(text + " ", own));
    }
    Line::from(spans).style(style)
}

/// The newest values on the right; a full block is `max`.
fn sparkline(values: impl DoubleEndedIterator<Item = f64>, max: f64, width: usize) -> String {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let block = |value: f64| match value {
        _ if value <= 0.0 || max <= 0.0 => '▁',
        // Any traffic is visible.
        _ => BLOCKS[((value / max * 8.0).round() as usize).clamp(1, 8)],
    };
    let mut blocks: Vec<char> = values.rev().take(width).map(block).collect();
    blocks.resize(width, ' ');
    blocks.iter().rev().collect()
}

/// Pads the text, or truncates it with an ellipsis.
fn padded(text: &str, width: usize, right: bool) -> String {
    if text.chars().count() > width {
        return text.chars().take(width.saturating_sub(1)).chain(['…']).collect();
    }
    if right { format!("{text:>width$}") } else { format!("{text:<width$}") }
}

/// A column of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Table(Column),
    History,
}

/// The columns that fit, with their widths; the least important ones are dropped first.
fn columns(width: u16, rows: &[Row]) -> Vec<(Cell, usize)> {
    let width = usize::from(width);
    let mut columns = vec![
        (Cell::Table(Column::Name), 9),
        (Cell::Table(Column::Addresses), 20),
        (Cell::Table(Column::Sent), 5),
        (Cell::Table(Column::Rtt), 6),
    ];
    let used = |columns: &[(Cell, usize)]| columns.iter().map(|(_, width)| width + 1).sum::<usize>();
    let wanted = rows.iter().map(|row| row_width(row, Column::Addresses)).max().unwrap_or(0);
    let state = rows.iter().map(|row| row_width(row, Column::State)).max().unwrap_or(0);
    let by_importance = [
        (Cell::Table(Column::Received), 5),
        (Cell::Table(Column::Share), 5),
        (Cell::History, 7),
        (Cell::Table(Column::Retransmissions), 7),
        (Cell::Table(Column::Cwnd), 5),
        (Cell::Table(Column::State), state),
    ];
    for (cell, needed) in by_importance {
        // Addresses are truncated in favour of more important columns.
        let addresses = if columns.len() < 8 { 0 } else { wanted.saturating_sub(20) };
        if needed > 0 && used(&columns) + addresses + needed < width {
            columns.push((cell, needed));
        }
    }
    columns.sort_by_key(|(cell, _)| match cell {
        Cell::Table(column) => (*column, 0),
        Cell::History => (Column::Retransmissions, 1),
    });
    let mut free = width.saturating_sub(used(&columns));
    for (cell, own) in &mut columns {
        let most = match cell {
            Cell::Table(Column::Addresses) => wanted.max(20),
            Cell::History => 40,
            Cell::Table(_) => continue,
        };
        let more = most.saturating_sub(*own).min(free);
        *own += more;
        free -= more;
    }
    columns
}

fn row_width(row: &Row, column: Column) -> usize {
    let cell = match row {
        Row::Connection(view) => connection_cell(view, column),
        Row::Subflow(view, _) => subflow_cell(view, column),
    };
    cell.chars().count()
}

fn draw_help(frame: &mut Frame, body: Rect) {
    let keys = HELP.iter().map(|(key, does)| Line::raw(format!(" {key:<25}{does}")));
    let notes = [
        "",
        " sent, rcvd: bit/s since the last sample; share: of the connection's traffic",
        " retrans: segments retransmitted; dim: backup or closed; history: one bar per sample",
    ];
    let lines: Vec<Line> = keys.chain(notes.map(Line::raw)).collect();
    let height = (lines.len() as u16 + 2).min(body.height);
    let area = Rect { height, width: body.width.min(90), ..body };
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys ")), area);
}

impl Theme {
    fn coloured(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::fixture::list;
    use super::*;

    fn drawn(list: &List, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, list, Theme { colour: true })).expect("a drawing");
        let cells = terminal.backend().buffer().content();
        let lines = cells.chunks(usize::from(width).max(1));
        lines.map(|line| line.iter().map(|cell| cell.symbol()).collect()).collect()
    }

    #[test]
    fn busiest_connection_comes_first_with_its_history() {
        let lines = drawn(&list(), 140, 12);
        assert!(lines[0].contains("2 connections, 3 subflows"));
        assert!(lines[2].starts_with("5f0c21aa"), "{}", lines[2]);
        assert!(lines[2].contains("52.9M") && lines[2].contains("1.20 MB reinjected"), "{}", lines[2]);
        assert!(lines[3].contains("eth0") && lines[3].contains("91 %") && lines[3].contains("▁▁▂▃▃▄▅▅▆▇▇█"));
        assert!(lines[4].contains("wlan0") && lines[4].contains("backup, 1 lost"), "{}", lines[4]);
        assert!(lines[5].starts_with("0a0b0c0d"));
    }

    #[test]
    fn narrow_screen_keeps_the_most_important_columns() {
        let lines = drawn(&list(), 80, 12);
        for heading in ["sent", "rcvd", "share", "rtt ms", "retrans", "history"] {
            assert!(lines[1].contains(heading), "{heading}: {}", lines[1]);
        }
        assert!(lines[3].contains("192.0.2.2:40002"), "{}", lines[3]);
    }

    #[test]
    fn help_pause_filter_and_scrolling_are_shown() {
        let mut list = list();
        list.paused = true;
        list.filter = "wlan".into();
        let lines = drawn(&list, 140, 6);
        assert!(lines[0].contains("paused") && lines[5].contains("filter: wlan"));
        assert!(lines[3].contains("wlan0") && lines[4].trim().is_empty(), "{lines:?}");
        list.filter.clear();
        list.offset = 2;
        let lines = drawn(&list, 140, 6);
        assert!(lines[2].contains("wlan0") && lines[5].contains("rows 3-5 of 5"), "{lines:?}");
        list.help = true;
        let lines = drawn(&list, 100, 24);
        assert!(lines.iter().any(|line| line.contains("filter rows by text")));
    }

    #[test]
    fn draws_on_every_screen_size() {
        let mut list = list();
        for help in [false, true] {
            list.help = help;
            for (width, height) in
                (0..200).step_by(7).flat_map(|width| [0, 1, 2, 3, 4, 9].map(|h| (width, h)))
            {
                drawn(&list, width, height);
            }
        }
    }

    #[test]
    fn no_color_uses_no_colours() {
        let mut terminal = Terminal::new(TestBackend::new(140, 12)).expect("a terminal");
        terminal.draw(|frame| draw(frame, &list(), Theme { colour: false })).expect("a drawing");
        let cells = terminal.backend().buffer().content();
        assert!(cells.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    }
}
