//! One kernel, which other packages of kernels use.

unsafe extern "C" {
    fn fill_all(a: *mut f32, value: f32, n: u32) -> i32;
}

/// Gives every element of `a` a value, and returns how many elements there were.
pub fn fill(a: &mut [f32], value: f32) -> i32 {
    // SAFETY: the slice has that many elements.
    unsafe { fill_all(a.as_mut_ptr(), value, a.len() as u32) }
}
