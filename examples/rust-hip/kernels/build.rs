fn main() {
    kpack_build::Hip::new()
        .files(["src/add.hip", "src/scale.hip"])
        .std("c++17")
        .compile("vector_kernels");
}
