//! A picture in pixels, on any machine: its letters come along.

use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::Source;
use resvg::usvg::{Options, Tree};

/// Pixels for each unit of the drawing, so that it is sharp on dense screens.
const DENSITY: f32 = 2.0;
/// The font that comes along, for whatever the drawing asks for.
const FAMILY: &str = "DejaVu Sans";

/// The picture of a drawing.
///
/// # Errors
/// The drawing is none, or too large for a picture.
pub(super) fn png(svg: &str) -> Result<Vec<u8>, String> {
    let mut options = Options { font_family: FAMILY.to_owned(), ..Options::default() };
    let fonts = options.fontdb_mut();
    for font in [dejavu::sans::regular(), dejavu::sans::bold()] {
        fonts.load_font_source(Source::Binary(Arc::new(font)));
    }
    fonts.set_sans_serif_family(FAMILY);
    let tree = Tree::from_str(svg, &options).map_err(|error| format!("picture: {error}"))?;
    let size = tree.size().to_int_size().scale_by(DENSITY);
    let room = size.and_then(|size| Pixmap::new(size.width(), size.height()));
    let mut pixels = room.ok_or("picture: too large to be drawn")?;
    resvg::render(&tree, Transform::from_scale(DENSITY, DENSITY), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| format!("picture: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_drawn_without_any_font_of_the_machine() {
        let drawing = |text: &str| {
            format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 80 20\">\
                 <text x=\"0\" y=\"16\" font-family=\"system-ui, sans-serif\">{text}</text></svg>"
            )
        };
        let [letters, none] = ["Tidegate", ""].map(|text| png(&drawing(text)).unwrap());
        assert!(letters.starts_with(b"\x89PNG"));
        assert!(letters.len() > none.len() + 500, "{} and {}", letters.len(), none.len());
        assert!(png("no drawing").is_err());
    }
}
