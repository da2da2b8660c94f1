# find_package(Kpack) defines the helper as the target Kpack::kpack, and the functions
# kpack_install(), kpack_split_installed(), kpack_split_compile(), kpack_device_components() and kpack_family_component().
#
# The package is relocatable and also works from a source tree. The helper is
#   1. Kpack_EXECUTABLE, if set;
#   2. for a package in a source tree, the newer of its target/release/kpack and target/debug/kpack;
#   3. for an installed package, bin/kpack in the same prefix, or else kpack on the PATH.

if(CMAKE_VERSION VERSION_LESS 3.22)
  set(Kpack_FOUND FALSE)
  set(Kpack_NOT_FOUND_MESSAGE "Kpack needs CMake 3.22 or newer, found ${CMAKE_VERSION}.")
  return()
endif()

include("${CMAKE_CURRENT_LIST_DIR}/KpackHelper.cmake")
_kpack_find_helper("${CMAKE_CURRENT_LIST_DIR}" "${Kpack_VERSION}" _kpack_helper _kpack_problem)
if(_kpack_problem)
  set(Kpack_FOUND FALSE)
  set(Kpack_NOT_FOUND_MESSAGE "${_kpack_problem}")
  unset(_kpack_problem)
  unset(_kpack_helper)
  return()
endif()

if(NOT TARGET Kpack::kpack)
  # The helper runs on the build machine, even when cross-compiling.
  add_executable(Kpack::kpack IMPORTED)
endif()
set_target_properties(Kpack::kpack PROPERTIES IMPORTED_LOCATION "${_kpack_helper}")
# The functions are now visible in all directories, but the target only in this one and below.
set_property(GLOBAL PROPERTY KPACK_HELPER "${_kpack_helper}")
unset(_kpack_problem)
unset(_kpack_helper)

include("${CMAKE_CURRENT_LIST_DIR}/KpackInstall.cmake")
