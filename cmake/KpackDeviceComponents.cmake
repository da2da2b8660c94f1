# DEVICE_COMPONENTS: one install component per GPU target, and their description for CPack.

include_guard(GLOBAL)
cmake_policy(PUSH)
cmake_policy(VERSION 3.22...3.31)

set_property(GLOBAL PROPERTY KPACK_CPACK_SCRIPT "${CMAKE_CURRENT_LIST_DIR}/KpackCPack.cmake")

# Converts a target ID for use in component and package names.
#
# Debian allows a-z 0-9 + - . in package names, but apt reads a + or - at the end of a name as an
# order to install or remove it, and a colon begins an architecture. So the colon becomes a dot,
# which no target ID has, and the sign at the end of a feature the word -on or -off:
#   gfx90a:xnack+                ->  gfx90a.xnack-on
#   gfx942:sramecc+:xnack-       ->  gfx942.sramecc-on.xnack-off
# Different target IDs get different names: the dots stand where the colons were, and the word after
# the last hyphen of a feature stands for its sign.
function(_kpack_target_name target output)
  string(REPLACE ":" ";" features "${target}")
  list(POP_FRONT features name)
  foreach(feature IN LISTS features)
    string(REGEX REPLACE "\\+$" "-on" feature "${feature}")
    string(REGEX REPLACE "-$" "-off" feature "${feature}")
    string(APPEND name ".${feature}")
  endforeach()
  set(${output} "${name}" PARENT_SCOPE)
endfunction()

# Sets <output> to the device component of a host component, and registers it.
function(_kpack_device_component command component host target output)
  _kpack_target_name("${target}" suffix)
  if(component STREQUAL "")
    set(component lib)
  endif()
  set(device "${component}-${suffix}")
  get_property(known GLOBAL PROPERTY KPACK_DEVICE_COMPONENTS)
  get_property(known_host GLOBAL PROPERTY "KPACK_HOST_OF ${device}")
  if(NOT device IN_LIST known)
    set_property(GLOBAL APPEND PROPERTY KPACK_DEVICE_COMPONENTS "${device}")
    set_property(GLOBAL PROPERTY "KPACK_HOST_OF ${device}" "${host}")
    set_property(GLOBAL APPEND_STRING PROPERTY KPACK_CPACK_HINTS
      "_kpack_cpack_hint([==[${device}]==] [==[${host}]==] [==[${suffix}]==])\n")
    set_property(GLOBAL APPEND_STRING PROPERTY KPACK_CPACK_CALLS
      "_kpack_cpack_component([==[${device}]==] [==[${host}]==] [==[${target}]==] [==[${suffix}]==] @weak@)\n")
    if("${known}" STREQUAL "")
      # CPackConfig.cmake is complete when the top-level directory has been processed.
      cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL _kpack_extend_cpack_config)
    endif()
  elseif(NOT known_host STREQUAL host)
    _kpack_fail(${command} "component \"${device}\" would hold device code of both \"${known_host}\" "
      "and \"${host}\". Pass COMPONENT to every call with DEVICE_COMPONENTS.")
  endif()
  set(${output} "${device}" PARENT_SCOPE)
endfunction()

# Tells cpack how the components relate. Names and versions of packages may be set until
# include(CPack), so they are looked up when cpack runs.
function(_kpack_extend_cpack_config)
  set(config "${CPACK_OUTPUT_CONFIG_FILE}")
  if(config STREQUAL "")
    set(config "${CMAKE_BINARY_DIR}/CPackConfig.cmake")
  endif()
  if(NOT EXISTS "${config}")
    return() # The project does not use CPack.
  endif()
  set(weak recommend)
  if(DEFINED KPACK_DEVICE_PACKAGES)
    set(weak "${KPACK_DEVICE_PACKAGES}")
  endif()
  if(NOT weak MATCHES "^(recommend|suggest|none)$")
    message(FATAL_ERROR "KPACK_DEVICE_PACKAGES is \"${weak}\" (expected recommend, suggest or none).")
  endif()
  get_property(script GLOBAL PROPERTY KPACK_CPACK_SCRIPT)
  get_property(calls GLOBAL PROPERTY KPACK_CPACK_CALLS)
  string(REPLACE "@weak@" "${weak}" calls "${calls}")
  set(components "${CMAKE_BINARY_DIR}/CMakeFiles/kpack/cpack.cmake")
  # cpack includes the project's CPACK_PROJECT_CONFIG_FILE once per generator.
  set(generator "${CMAKE_BINARY_DIR}/CMakeFiles/kpack/cpack_generator.cmake")
  file(WRITE "${components}"
    "include([==[${script}]==])
${calls}_kpack_cpack_deb_summaries()
set(KPACK_CPACK_PROJECT_CONFIG_FILE \"\${CPACK_PROJECT_CONFIG_FILE}\")
set(CPACK_PROJECT_CONFIG_FILE [==[${generator}]==])
")
  get_property(hints GLOBAL PROPERTY KPACK_CPACK_HINTS)
  file(WRITE "${generator}" "if(KPACK_CPACK_PROJECT_CONFIG_FILE)
  include(\"\${KPACK_CPACK_PROJECT_CONFIG_FILE}\")
endif()
${hints}")
  set(extension "include([==[${components}]==])")
  file(READ "${config}" text)
  string(FIND "${text}" "${extension}" position)
  if(position EQUAL -1)
    file(APPEND "${config}" "\n# Added by Kpack: packages of device code.\n${extension}\n")
  endif()
endfunction()

cmake_policy(POP)
