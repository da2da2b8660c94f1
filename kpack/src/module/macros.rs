//! The macros that a program calls, and that what `kpack-build` generates calls.

/// Declares the modules that `kpack_build::Hip::compile_modules` compiled under this name.
///
/// `kpack::include_modules!("kernels")` declares a Rust module `kernels`. It contains a [`Module`](crate::Module) for each
/// source, such as `AFFINE` for `affine.hip`, and `ALL`, which lists them. The crate's [front page](crate) has an example.
///
/// The macro expands to a static in a section of its own, so a crate with `#![forbid(unsafe_code)]` cannot call it. Put the
/// modules in a package of their own then.
#[macro_export]
macro_rules! include_modules {
    ($name:literal) => {
        include!(concat!(
            env!(
                "OUT_DIR",
                "include_modules! needs a build.rs that calls kpack_build::Hip::compile_modules"
            ),
            "/kpack/",
            $name,
            "/modules.rs"
        ));
    };
}

/// What the file that `kpack-build` generates calls. After a release, a change of its input needs another number in the name,
/// so that the compiler rejects a `kpack-build` and a `kpack` that do not fit.
///
/// The bundle appears once, because the compiler reads a file again for each `include_bytes!`, and a constant with its
/// length would put its content once more into the metadata of the crate. So the size is a literal, which the compiler
/// compares with that of the file.
#[doc(hidden)]
#[macro_export]
macro_rules! modules_v1 {
    (@module $name:ident, skipped: $reason:literal, name: $text:literal $(,)?) => {
        #[doc = concat!("The module `", $text, "`, which the build skipped.")]
        pub static $name: $crate::Module = $crate::internal::skipped_module($text, $reason);
    };
    (
        @module $name:ident,
        name: $text:literal,
        size: $size:literal,
        bundle: $bundle:expr,
        targets: [$($target:literal),* $(,)?],
        kernels: [$($kernel:literal),* $(,)?],
        list: $list:literal $(,)?
    ) => {
        #[doc = concat!("The module `", $text, "`, with the kernels ", $list, ".")]
        pub static $name: $crate::Module = {
            #[cfg_attr(windows, unsafe(link_section = ".hip_fat"))]
            #[cfg_attr(not(windows), unsafe(link_section = ".hip_fatbin"))]
            static BUNDLE: $crate::internal::Bundle<$size> =
                $crate::internal::Bundle::new($bundle);
            #[cfg_attr(windows, unsafe(link_section = ".hipFatB"))]
            #[cfg_attr(not(windows), unsafe(link_section = ".hipFatBinSegment"))]
            static WRAPPER: $crate::internal::Wrapper = $crate::internal::Wrapper::new(&BUNDLE);
            #[cfg(not(windows))]
            #[used]
            #[unsafe(link_section = ".note.kpack_modules")]
            static NOTE: $crate::internal::Note = $crate::internal::Note::MODULES;
            $crate::internal::compiled_module(
                $text,
                &WRAPPER,
                &[$($target),*],
                &[$($kernel),*],
                concat!("module `", $text, "` has no kernel of this name; it has ", $list),
            )
        };
    };
    ($module:ident; $($name:ident { $($body:tt)* })*) => {
        #[doc = concat!("The modules `", stringify!($module), "` of device code.")]
        #[allow(dead_code, unreachable_pub, unsafe_code, reason = "generated")]
        pub mod $module {
            $($crate::modules_v1! { @module $name, $($body)* })*

            /// All modules.
            pub static ALL: &[&$crate::Module] = &[$(&$name),*];
        }
    };
    ($($other:tt)*) => {
        compile_error!(
            "kpack-build generated what this version of kpack cannot read; use the same version of both"
        );
    };
}
