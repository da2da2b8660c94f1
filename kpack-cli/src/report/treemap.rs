//! Rectangles whose areas are proportional to sizes, as close to squares as a greedy layout gets
//! (Bruls, Huizing, van Wijk: "Squarified Treemaps", 2000).

/// A rectangle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rectangle {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Rectangle {
    fn area(&self) -> f64 {
        self.width * self.height
    }

    /// Shrinks the rectangle by `margin` on every side, and by another `top` above.
    pub(super) fn inset(&self, margin: f64, top: f64) -> Self {
        Self {
            x: self.x + margin,
            y: self.y + margin + top,
            width: (self.width - 2.0 * margin).max(0.0),
            height: (self.height - 2.0 * margin - top).max(0.0),
        }
    }
}

/// Returns a rectangle within `area` for each size, in order. Sizes come largest first; a size of
/// zero gets an empty rectangle.
pub(super) fn layout(sizes: &[u64], area: Rectangle) -> Vec<Rectangle> {
    let total: f64 = sizes.iter().map(|size| *size as f64).sum();
    let mut places = Vec::with_capacity(sizes.len());
    let mut rest = area;
    let scale = if total > 0.0 { area.area() / total } else { 0.0 };
    let areas: Vec<f64> = sizes.iter().map(|size| *size as f64 * scale).collect();
    let mut start = 0;
    while start < areas.len() {
        let side = rest.width.min(rest.height);
        let mut end = start + 1;
        while end < areas.len()
            && worst(&areas[start..=end], side) <= worst(&areas[start..end], side)
        {
            end += 1;
        }
        rest = place_row(&areas[start..end], rest, &mut places);
        start = end;
    }
    places
}

/// The worst ratio of width to height in a row along `side`.
fn worst(row: &[f64], side: f64) -> f64 {
    let sum: f64 = row.iter().sum();
    let largest = row.iter().copied().fold(0.0, f64::max);
    let smallest = row.iter().copied().fold(f64::INFINITY, f64::min);
    if sum <= 0.0 || smallest <= 0.0 || side <= 0.0 {
        return f64::INFINITY;
    }
    let square = side * side;
    (square * largest / (sum * sum)).max(sum * sum / (square * smallest))
}

/// Places a row along the shorter side of `area` and returns the remaining area.
fn place_row(row: &[f64], area: Rectangle, places: &mut Vec<Rectangle>) -> Rectangle {
    let sum: f64 = row.iter().sum();
    let upright = area.width >= area.height;
    let side = if upright { area.height } else { area.width };
    let depth = if side > 0.0 { sum / side } else { 0.0 };
    let mut at = 0.0;
    for size in row {
        let length = if depth > 0.0 { size / depth } else { 0.0 };
        let ((x, y), (width, height)) = if upright {
            ((area.x, area.y + at), (depth, length))
        } else {
            ((area.x + at, area.y), (length, depth))
        };
        places.push(Rectangle { x, y, width, height });
        at += length;
    }
    if upright {
        Rectangle { x: area.x + depth, width: (area.width - depth).max(0.0), ..area }
    } else {
        Rectangle { y: area.y + depth, height: (area.height - depth).max(0.0), ..area }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: Rectangle = Rectangle { x: 0.0, y: 0.0, width: 6.0, height: 4.0 };

    #[test]
    fn areas_are_proportional_and_apart() {
        let sizes = [6, 6, 4, 3, 2, 2, 1];
        let places = layout(&sizes, AREA);
        for (size, place) in sizes.iter().zip(&places) {
            assert!((place.area() - *size as f64).abs() < 1e-9, "{place:?}");
            let (right, bottom) = (place.x + place.width, place.y + place.height);
            assert!(place.x >= -1e-9 && right <= 6.0 + 1e-9 && bottom <= 4.0 + 1e-9);
        }
        for (index, a) in places.iter().enumerate() {
            for b in &places[index + 1..] {
                let apart = a.x + a.width <= b.x + 1e-9
                    || b.x + b.width <= a.x + 1e-9
                    || a.y + a.height <= b.y + 1e-9
                    || b.y + b.height <= a.y + 1e-9;
                assert!(apart, "{a:?} {b:?}");
            }
        }
        // The paper's example: the first two are stacked.
        assert_eq!((places[0].width, places[0].height), (3.0, 2.0));
        assert_eq!((places[1].x, places[1].y), (0.0, 2.0));
    }

    #[test]
    fn nothing_has_no_area() {
        let places = layout(&[5, 0, 0], AREA);
        assert_eq!(places[0].area(), 24.0);
        assert_eq!(places[1].area() + places[2].area(), 0.0);
        assert!(layout(&[], AREA).is_empty());
        assert_eq!(layout(&[0, 0], AREA).len(), 2);
    }
}
