fn main() {
    let mut a = [1.0, 2.0, 3.0];
    let added = vector_kernels::add(&mut a, &[4.0, 5.0, 6.0]);
    let mean = stats::mean(&mut a);
    println!("added {added}, mean {mean}");
}
