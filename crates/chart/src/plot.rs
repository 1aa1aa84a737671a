//! A plot as files.

use std::sync::{Arc, LazyLock};

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::{Database, Source};
use resvg::usvg::{Options, Tree};

/// Pixels for each unit of the SVG.
const SCALE: f32 = 2.0;

/// Letters and digits for hosts that have no fonts.
const FONT: &[u8] = include_bytes!("font/Inter-Latin.otf");

static FONTS: LazyLock<Arc<Database>> = LazyLock::new(|| {
    let mut fonts = Database::new();
    fonts.load_font_source(Source::Binary(Arc::new(FONT)));
    Arc::new(fonts)
});

/// A chart with its name.
#[derive(Clone, Debug)]
pub struct Plot {
    /// What it shows, fit for a file's name, such as `connection-1-throughput`.
    pub name: String,
    /// The plot.
    pub svg: String,
}

impl Plot {
    /// The plot as PNG, in two pixels for each unit of the SVG.
    ///
    /// # Panics
    /// When [`svg`](Self::svg) was replaced with something that is no SVG.
    pub fn png(&self) -> Vec<u8> {
        let options = Options { fontdb: FONTS.clone(), font_family: "Inter".into(), ..Options::default() };
        let tree = Tree::from_str(&self.svg, &options).expect("plots are valid SVG");
        let size = tree.size().to_int_size();
        let size = size.scale_by(SCALE).unwrap_or(size);
        let mut image = Pixmap::new(size.width(), size.height()).expect("plots have a size");
        resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut image.as_mut());
        image.encode_png().expect("encoding into memory does not fail")
    }
}
