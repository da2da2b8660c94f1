fn main() {
    kpack_build::Hip::new()
        .file("src/fill.hip")
        .std("c++17")
        .compile("fill_kernels");
}
