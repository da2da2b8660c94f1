fn main() {
    let mut total = [1.0, 2.0, 3.0];
    let added = stats::accumulate(&mut total, &[4.0, 5.0, 6.0]);
    let mean = stats::mean(&mut total);
    let cleared = stats::reset(&mut total);
    println!("added {added}, mean {mean}, cleared {cleared}");
}
