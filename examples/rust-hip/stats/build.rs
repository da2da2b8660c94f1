fn main() {
    kpack_build::Hip::new()
        .file("src/sum.hip")
        .std("c++17")
        .compile("stats_kernels");
}
