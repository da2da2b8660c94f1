# RUNTIME_SHIM: links the shim, which gives device code to HIP runtimes that do not read markers.

include_guard(GLOBAL)
cmake_policy(PUSH)
cmake_policy(VERSION 3.22...3.31)

# Links the shim into a target: if <form> is "shared", the shared library, else the static one.
function(_kpack_link_shim command target form)
  if(CMAKE_CROSSCOMPILING AND NOT CMAKE_SYSTEM_PROCESSOR STREQUAL CMAKE_HOST_SYSTEM_PROCESSOR)
    _kpack_fail(${command} "RUNTIME_SHIM: the installed shim is for ${CMAKE_HOST_SYSTEM_PROCESSOR}, "
      "and \"${target}\" is for ${CMAKE_SYSTEM_PROCESSOR}. Users can preload the shim, or join the "
      "binaries with \"kpack join\".")
  endif()
  set(name libkpack_hip.a)
  if(form STREQUAL "shared")
    set(name libkpack_hip.so)
  endif()
  get_property(package_dir GLOBAL PROPERTY KPACK_PACKAGE_DIR)
  cmake_path(SET library NORMALIZE "${package_dir}/../../${name}")
  if(NOT EXISTS "${library}")
    _kpack_fail(${command} "RUNTIME_SHIM needs ${library}, which does not exist. Use an installed kpack; "
      "\"cargo xtask dist --prefix DIR\" installs one from a source tree.")
  endif()
  cmake_path(GET library PARENT_PATH directory)
  get_target_property(linked "${target}" KPACK_RUNTIME_SHIM)
  if(linked STREQUAL name)
    return() # By another call.
  elseif(linked)
    _kpack_fail(${command} "RUNTIME_SHIM: another call links ${linked} into \"${target}\", and this one "
      "${name}. Choose one of them.")
  endif()
  # Properties, since the signatures of target_link_libraries() cannot be mixed.
  set_property(TARGET "${target}" PROPERTY KPACK_RUNTIME_SHIM ${name})
  if(form STREQUAL "shared")
    # What calls it may come later, and many compilers link with --as-needed.
    set(library "-Wl,--push-state,--no-as-needed" "${library}" "-Wl,--pop-state")
  endif()
  set_property(TARGET "${target}" APPEND PROPERTY LINK_LIBRARIES "${library}")
  foreach(function __hipRegisterFatBinary __hipUnregisterFatBinary)
    # Static libraries that are linked after the shim may also call it.
    set_property(TARGET "${target}" APPEND PROPERTY LINK_OPTIONS
      "LINKER:--wrap=${function},-u,__wrap_${function}")
  endforeach()
  if(form STREQUAL "shared")
    get_property(searches_lib64 GLOBAL PROPERTY FIND_LIBRARY_USE_LIB64_PATHS)
    # Where /usr/lib has the libraries of this system, the dynamic linker looks there anyway.
    if(NOT directory STREQUAL "/usr/lib" OR searches_lib64)
      set_property(TARGET "${target}" APPEND PROPERTY INSTALL_RPATH "${directory}")
    endif()
  endif()
endfunction()

cmake_policy(POP)
