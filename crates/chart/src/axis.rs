//! Axes: where values lie, and round ones to write beside them.

use std::ops::Range;

use crate::svg::{LEFT, PLOT_HEIGHT, RIGHT, RULE, SOFT, Svg, TOP, WIDTH};

/// The bottom of the plot.
pub(crate) const BOTTOM: f64 = TOP + PLOT_HEIGHT;
/// What is below it, without the legend.
pub(crate) const BELOW: f64 = 56.0;

/// Where a value of the vertical axis lies.
pub(crate) fn height_of(value: f64, range: &Range<f64>) -> f64 {
    TOP + (range.end - value) / (range.end - range.start) * PLOT_HEIGHT
}

/// Where a value of the horizontal axis lies.
pub(crate) fn left_of(value: f64, range: &Range<f64>) -> f64 {
    LEFT + (value - range.start) / (range.end - range.start) * (WIDTH - LEFT - RIGHT)
}

/// Draws the vertical axis with its unit, and the line at the bottom.
pub(crate) fn draw_heights(svg: &mut Svg, range: &Range<f64>, unit: &str) {
    let right = WIDTH - RIGHT;
    for (value, text) in ticks(range, 8) {
        let y = height_of(value, range);
        svg.add(&format!(r#"<path d="M{LEFT} {y:.1}H{right}" stroke="{RULE}"/>"#));
        svg.text((LEFT - 10.0, y + 4.0), "end", SOFT, 12, &text);
    }
    svg.add(&format!(r#"<path d="M{LEFT} {BOTTOM}H{right}" stroke="{SOFT}"/>"#));
    svg.text((LEFT, TOP - 12.0), "start", SOFT, 12, unit);
}

/// Draws a value on the horizontal axis.
pub(crate) fn draw_tick(svg: &mut Svg, x: f64, text: &str) {
    svg.add(&format!(r#"<path d="M{x:.1} {BOTTOM}v5" stroke="{SOFT}"/>"#));
    svg.text((x, BOTTOM + 20.0), "middle", SOFT, 12, text);
}

/// Writes what the horizontal axis counts.
pub(crate) fn draw_label(svg: &mut Svg, text: &str) {
    svg.text((WIDTH - RIGHT, BOTTOM + 40.0), "end", SOFT, 12, text);
}

/// Up to about `most` round values within a range, and how to write them.
pub(crate) fn ticks(range: &Range<f64>, most: u32) -> Vec<(f64, String)> {
    let least = (range.end - range.start) / f64::from(most);
    let magnitude = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * magnitude);
    let step = step.into_iter().find(|step| *step >= least * 0.999).unwrap_or(least);
    let digits = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
    let first = (range.start / step - 1e-6).ceil();
    let count = (range.end / step + 1e-6).floor() - first;
    (0..=count.clamp(0.0, 50.0) as u32)
        .map(|index| (first + f64::from(index)) * step)
        .map(|value| (value, format!("{:.digits$}", value + 0.0)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_written_with_the_digits_that_they_need() {
        let texts = |range| ticks(&range, 6).into_iter().map(|tick| tick.1).collect::<Vec<_>>().join(" ");
        assert_eq!(texts(0.0..97.0), "0 20 40 60 80");
        assert_eq!(texts(0.0..0.25), "0.00 0.05 0.10 0.15 0.20 0.25");
        assert_eq!(texts(-3.0..3.0), "-3 -2 -1 0 1 2 3");
    }
}
