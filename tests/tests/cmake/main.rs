//! The CMake package, on standalone projects in `tests/cmake/`: each is configured, built, installed
//! and packed with the real tools, against the package in the source tree and an installed copy.

/// Makes two tests of each function, one for each package. Without the programs that are named
/// first they are skipped, and say so.
macro_rules! with_each_package {
    ($programs:expr => $($name:ident),+ $(,)?) => {
        mod source_tree {
            $(
                #[test]
                fn $name() {
                    if crate::project::programs_are_there(&$programs) {
                        super::$name(&crate::package::Package::source_tree());
                    }
                }
            )+
        }

        mod installed {
            $(
                #[test]
                fn $name() {
                    if crate::project::programs_are_there(&$programs) {
                        super::$name(&crate::package::Package::installed());
                    }
                }
            )+
        }
    };
}

mod arguments;
mod find_package;
mod install;
mod package;
mod package_relations;
mod package_roots;
mod packages;
mod prefix;
mod project;
mod rules;
mod split_compile;
