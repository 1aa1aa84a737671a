//! An SVG that is being written: what all charts share.

/// All charts are so wide, in SVG's units.
pub(crate) const WIDTH: f64 = 960.0;
pub(crate) const PLOT_HEIGHT: f64 = 300.0;
pub(crate) const LEFT: f64 = 76.0;
pub(crate) const RIGHT: f64 = 28.0;
pub(crate) const TOP: f64 = 92.0;

pub(crate) const INK: &str = "#1d2330";
pub(crate) const SOFT: &str = "#5d6675";
pub(crate) const RULE: &str = "#e3e6eb";
const FONT: &str = "Inter, 'Helvetica Neue', Helvetica, Arial, sans-serif";

/// A chart with its title and note, to which the rest is added.
pub(crate) struct Svg(String);

impl Svg {
    pub(crate) fn new(height: f64, title: &str, note: &str) -> Self {
        let mut svg = Self(format!(
            concat!(
                r#"<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" "#,
                r#"font-family="{font}" role="img"><title>{title}</title>"#,
                r##"<rect width="{w}" height="{h}" fill="#fff"/>"##
            ),
            w = WIDTH,
            h = height,
            font = FONT,
            title = escaped(title)
        ));
        svg.text((RIGHT, 30.0), "start", INK, 17, title);
        svg.text((RIGHT, 49.0), "start", SOFT, 12, note);
        svg
    }

    pub(crate) fn add(&mut self, text: &str) {
        self.0.push_str(text);
        self.0.push('\n');
    }

    pub(crate) fn text(&mut self, at: (f64, f64), anchor: &str, colour: &str, size: u32, content: &str) {
        self.add(&text(at, anchor, colour, size, content));
    }

    pub(crate) fn finish(mut self) -> String {
        self.add("</svg>");
        self.0
    }
}

/// The names of series with a sample of each, in as many rows as they need.
pub(crate) struct Legend {
    svg: String,
    left: f64,
    top: f64,
    height: f64,
}

const LEGEND_ROW: f64 = 22.0;

impl Legend {
    /// One whose first row is at `top`.
    pub(crate) fn new(top: f64) -> Self {
        Self { svg: String::new(), left: LEFT, top, height: LEGEND_ROW }
    }

    /// Adds a name. `sample` draws into 26 units from the given point to the right, around its height.
    pub(crate) fn add(&mut self, label: &str, sample: impl FnOnce(f64, f64) -> String) {
        let width = 34.0 + text_width(label, 12) + 20.0;
        if self.left > LEFT && self.left + width > WIDTH - RIGHT {
            self.left = LEFT;
            self.height += LEGEND_ROW;
        }
        let y = self.top + self.height - LEGEND_ROW;
        self.svg += &sample(self.left, y);
        self.svg += &text((self.left + 34.0, y + 4.0), "start", INK, 12, label);
        self.left += width;
    }

    pub(crate) fn height(&self) -> f64 {
        self.height
    }

    pub(crate) fn svg(&self) -> &str {
        &self.svg
    }
}

fn text((x, y): (f64, f64), anchor: &str, colour: &str, size: u32, content: &str) -> String {
    let content = escaped(content);
    format!(
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">{content}</text>"#
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// About how wide a text is.
pub(crate) fn text_width(text: &str, size: u32) -> f64 {
    text.chars().count() as f64 * f64::from(size) * 0.52
}
