//! Charts as SVG and PNG, for reports and papers.
//!
//! There are three kinds of [`Figure`]: a [`Chart`] shows series over time, [`Shares`] show how parts make up a whole, and
//! a [`Sweep`] shows how a metric depends on a parameter, with error bars and reference values. A [`Plot`] is a drawn
//! figure. The PNG uses an embedded font, so that it looks the same on every host; text in the SVG is selectable.
//!
//! Series differ in colour and in dash pattern or shape, so that charts are readable in grey and for colour-blind readers.

mod chart;
mod layout;
mod shares;
mod style;
mod sweep;

use std::sync::Once;

use plotters::coord::Shift;
use plotters::prelude::{
    BitMapBackend, DrawingArea, DrawingAreaErrorKind, DrawingBackend, IntoDrawingArea, SVGBackend,
};
use plotters::style::{FontStyle, register_font};

pub use chart::{Chart, Series, Shape};
pub use shares::{Share, Shares};
pub use style::Style;
pub use sweep::{Curve, Over, Sweep, Value};

/// Width of all figures in units of the SVG.
const WIDTH: u32 = 960;

/// Pixels of the PNG per unit of the SVG.
const PNG_SCALE: u32 = 2;

/// Latin letters and digits, for hosts without fonts.
const FONT: &[u8] = include_bytes!("plot/font/Inter-Latin.otf");

/// The result of drawing on a backend.
pub type Drawn<DB> = Result<(), DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

/// Something that can be drawn.
pub trait Figure {
    /// Its height in units of the SVG.
    fn height(&self) -> u32;

    /// Draws it, with `scale` pixels per unit.
    fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>, scale: u32) -> Drawn<DB>;
}

/// A drawn figure.
#[derive(Clone, Debug)]
pub struct Plot {
    /// A name fit for a file, such as `connection-1-throughput`.
    pub name: String,
    /// The figure as SVG.
    pub svg: String,
    /// The figure as PNG, with two pixels per unit of the SVG.
    pub png: Vec<u8>,
}

impl Plot {
    /// Draws a figure.
    pub fn draw(name: String, figure: &impl Figure) -> Self {
        static FONTS: Once = Once::new();
        FONTS.call_once(|| {
            for style in [FontStyle::Normal, FontStyle::Bold] {
                register_font(layout::FONT_FAMILY, style, FONT).map_err(drop).expect("the font is valid");
            }
        });
        Self { name, svg: svg(figure), png: png(figure) }
    }
}

fn svg(figure: &impl Figure) -> String {
    let mut svg = String::new();
    let backend = SVGBackend::with_string(&mut svg, (WIDTH, figure.height()));
    draw_on(backend.into_drawing_area(), figure, 1);
    svg
}

fn png(figure: &impl Figure) -> Vec<u8> {
    let (width, height) = (WIDTH * PNG_SCALE, figure.height() * PNG_SCALE);
    let mut pixels = vec![0; (width * height * 3) as usize];
    let backend = BitMapBackend::with_buffer(&mut pixels, (width, height));
    draw_on(backend.into_drawing_area(), figure, PNG_SCALE);
    let mut png = Vec::new();
    let mut encoder = png::Encoder::new(&mut png, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&pixels));
    written.expect("encoding into memory does not fail");
    png
}

fn draw_on<DB: DrawingBackend>(area: DrawingArea<DB, Shift>, figure: &impl Figure, scale: u32) {
    let drawn =
        area.fill(&style::PAPER).and_then(|()| figure.draw(&area, scale)).and_then(|()| area.present());
    drawn.expect("drawing into memory does not fail");
}
