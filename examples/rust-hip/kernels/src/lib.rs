//! Kernels on vectors, called from Rust.

mod ffi {
    unsafe extern "C" {
        pub fn vector_add(a: *mut f32, b: *const f32, n: u32) -> i32;
        pub fn vector_scale(a: *mut f32, factor: f32, n: u32) -> i32;
    }
}

/// Adds `b` to `a`, and returns how many elements there were.
///
/// ```
/// let mut a = [1.0, 2.0];
/// assert_eq!(vector_kernels::add(&mut a, &[3.0, 4.0]), 2);
/// ```
pub fn add(a: &mut [f32], b: &[f32]) -> i32 {
    let n = a.len().min(b.len()) as u32;
    // SAFETY: both have n elements. (A real program would copy them to the GPU first.)
    unsafe { ffi::vector_add(a.as_mut_ptr(), b.as_ptr(), n) }
}

/// Sets every element of `a` to zero, and returns how many elements there were.
pub fn clear(a: &mut [f32]) -> i32 {
    fill::fill(a, 0.0)
}

/// Multiplies `a` by `factor`, and returns how many elements there were.
pub fn scale(a: &mut [f32], factor: f32) -> i32 {
    // SAFETY: the slice has that many elements.
    unsafe { ffi::vector_scale(a.as_mut_ptr(), factor, a.len() as u32) }
}
