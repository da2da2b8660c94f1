//! Tests of the CMake package with the standalone projects in `tests/cmake/`. The real tools configure,
//! build, install and package each of them, with the package in the source tree and an installed copy.

/// Makes two tests of each function, one for each package. Without the named programs they are skipped
/// with a message.
macro_rules! with_each_package {
    ($programs:expr => $($name:ident),+ $(,)?) => {
        mod source_tree {
            $(
                #[test]
                fn $name() {
                    if kpack_tests::require::tools(&$programs) {
                        super::$name(&crate::cmake::package::Package::source_tree());
                    }
                }
            )+
        }

        mod installed {
            $(
                #[test]
                fn $name() {
                    if kpack_tests::require::tools(&$programs) {
                        super::$name(&crate::cmake::package::Package::installed());
                    }
                }
            )+
        }
    };
}

mod arguments;
mod distributions;
mod find_package;
mod install;
mod manual;
mod package;
mod package_relations;
mod package_roots;
mod packages;
mod prefix;
mod project;
mod rules;
mod split_compile;
mod windows;
