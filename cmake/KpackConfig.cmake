# find_package(Kpack): the helper as the target Kpack::kpack, and the functions kpack_install(),
# kpack_split_installed(), kpack_split_compile() and kpack_device_components().
#
# The package is relocatable, and works from a source tree too. The helper is
#   1. Kpack_EXECUTABLE, where that is set;
#   2. for a package in a source tree, the newer of its target/release/kpack and target/debug/kpack;
#   3. for an installed package, bin/kpack of the same prefix, or else kpack on the PATH.

if(CMAKE_VERSION VERSION_LESS 3.22)
  set(Kpack_FOUND FALSE)
  set(Kpack_NOT_FOUND_MESSAGE "Kpack needs CMake 3.22 or newer; this is ${CMAKE_VERSION}.")
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
  # The helper runs on the build machine, also in a cross build.
  add_executable(Kpack::kpack IMPORTED)
endif()
set_target_properties(Kpack::kpack PROPERTIES IMPORTED_LOCATION "${_kpack_helper}")
# The functions are known in all directories from now on, the target only in this and those below.
set_property(GLOBAL PROPERTY KPACK_HELPER "${_kpack_helper}")
unset(_kpack_problem)
unset(_kpack_helper)

include("${CMAKE_CURRENT_LIST_DIR}/KpackInstall.cmake")
