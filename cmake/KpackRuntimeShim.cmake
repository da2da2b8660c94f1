# RUNTIME_SHIM: links the shim, which gives device code to HIP runtimes that do not read markers.

include_guard(GLOBAL)
cmake_policy(PUSH)
cmake_policy(VERSION 3.22...3.31)

# Links the shim into a target.
function(_kpack_link_shim command target)
  if(CMAKE_CROSSCOMPILING AND NOT CMAKE_SYSTEM_PROCESSOR STREQUAL CMAKE_HOST_SYSTEM_PROCESSOR)
    _kpack_fail(${command} "RUNTIME_SHIM: the installed shim is for ${CMAKE_HOST_SYSTEM_PROCESSOR}, "
      "and \"${target}\" is for ${CMAKE_SYSTEM_PROCESSOR}. Users can preload the shim, or join the "
      "binaries with \"kpack join\".")
  endif()
  get_property(package_dir GLOBAL PROPERTY KPACK_PACKAGE_DIR)
  cmake_path(SET library NORMALIZE "${package_dir}/../../libkpack_hip.a")
  if(NOT EXISTS "${library}")
    _kpack_fail(${command} "RUNTIME_SHIM needs ${library}, which does not exist. Use an installed kpack; "
      "\"cargo xtask dist --prefix DIR\" installs one from a source tree.")
  endif()
  get_target_property(linked "${target}" KPACK_RUNTIME_SHIM)
  if(linked)
    return() # By another call.
  endif()
  # Properties, since the signatures of target_link_libraries() cannot be mixed.
  set_property(TARGET "${target}" PROPERTY KPACK_RUNTIME_SHIM TRUE)
  set_property(TARGET "${target}" APPEND PROPERTY LINK_LIBRARIES "${library}")
  foreach(function __hipRegisterFatBinary __hipUnregisterFatBinary)
    # Static libraries that are linked after the shim may call it, too.
    set_property(TARGET "${target}" APPEND PROPERTY LINK_OPTIONS
      "LINKER:--wrap=${function},-u,__wrap_${function}")
  endforeach()
endfunction()

cmake_policy(POP)
