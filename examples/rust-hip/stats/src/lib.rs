//! Statistics, with its own kernel and those of another package.

unsafe extern "C" {
    fn stats_sum(result: *mut f32, a: *const f32, n: u32) -> i32;
}

/// Adds samples to a total, and returns how many elements there were.
pub fn accumulate(total: &mut [f32], samples: &[f32]) -> i32 {
    vector_kernels::add(total, samples)
}

/// Resets a total, and returns how many elements it has.
pub fn reset(total: &mut [f32]) -> i32 {
    vector_kernels::clear(total)
}

/// Launches the kernels of a mean, and returns the number that their host code computes.
pub fn mean(values: &mut [f32]) -> i32 {
    let mut result = 0.0;
    let scaled = vector_kernels::scale(values, 1.0 / values.len() as f32);
    // SAFETY: the slice has that many elements.
    let summed = unsafe { stats_sum(&mut result, values.as_ptr(), values.len() as u32) };
    scaled + summed
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_mean_of_three() {
        assert_eq!(super::mean(&mut [1.0, 2.0, 3.0]), 7);
    }
}
