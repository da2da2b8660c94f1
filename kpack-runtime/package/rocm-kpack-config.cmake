# find_package(rocm-kpack) defines
#   rocm-kpack::rocm_kpack         the loader, as a shared library
#   rocm-kpack::rocm_kpack_static  the same as a static library
# Paths are relative to this file, so the prefix can be moved.

get_filename_component(_rocm_kpack_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET rocm-kpack::rocm_kpack)
  add_library(rocm-kpack::rocm_kpack SHARED IMPORTED)
  set_target_properties(rocm-kpack::rocm_kpack PROPERTIES
    IMPORTED_LOCATION "${_rocm_kpack_prefix}/lib/librocm_kpack.so"
    IMPORTED_SONAME "librocm_kpack.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${_rocm_kpack_prefix}/include")
endif()

if(NOT TARGET rocm-kpack::rocm_kpack_static)
  add_library(rocm-kpack::rocm_kpack_static STATIC IMPORTED)
  set_target_properties(rocm-kpack::rocm_kpack_static PROPERTIES
    IMPORTED_LOCATION "${_rocm_kpack_prefix}/lib/librocm_kpack.a"
    IMPORTED_LINK_INTERFACE_LANGUAGES C
    INTERFACE_INCLUDE_DIRECTORIES "${_rocm_kpack_prefix}/include"
    INTERFACE_LINK_LIBRARIES "gcc_s;pthread;dl;m")
endif()

foreach(_rocm_kpack_file IN ITEMS include/rocm_kpack/kpack.h lib/librocm_kpack.so)
  if(NOT EXISTS "${_rocm_kpack_prefix}/${_rocm_kpack_file}")
    set(rocm-kpack_FOUND FALSE)
    set(rocm-kpack_NOT_FOUND_MESSAGE
      "${_rocm_kpack_prefix}/${_rocm_kpack_file} is missing: the installation is not complete")
  endif()
endforeach()

unset(_rocm_kpack_file)
unset(_rocm_kpack_prefix)
