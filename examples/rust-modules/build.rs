fn main() {
    kpack_build::Hip::new()
        .files(["kernels/vector.hip", "kernels/convert.hip"])
        .offload_archs(["gfx942", "gfx1100"])
        .compile_modules("kernels");
}
