# kpack_install(), kpack_split_installed() and kpack_split_compile(); see docs/cmake-reference.md.

include_guard(GLOBAL)
# Functions keep the policies set at their definition, regardless of the caller's.
cmake_policy(PUSH)
cmake_policy(VERSION 3.22...3.31)

include("${CMAKE_CURRENT_LIST_DIR}/KpackArguments.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/KpackDeviceComponents.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/KpackHooks.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/KpackRuntimeShim.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/KpackSplitCompile.cmake")

# kpack_install(TARGETS <target>... MODULE <name> [COMPONENT <name>] [ARCHITECTURES <target ID>...]
#               [KPACK_DESTINATION <dir>] [KPACK_COMPONENT <name>] [DEVICE_COMPONENTS]
#               [UNEXPECTED drop|error|keep] [SPIRV keep|drop|archive] [COMPRESSION zstd|none]
#               [LEVEL <n>] [STRIP_DEBUG [DEBUG_DESTINATION <dir>]] [SPLIT_AT compile|install]
#               [INSTALL_HINT <text>] [KERNEL_FILES <rule>...] [RUNTIME_SHIM [shared]]
#               [<arguments of install(TARGETS)>...])
#
# Installs the targets and splits the installed files.
function(kpack_install)
  _kpack_read_arguments(kpack_install ${ARGN})
  _kpack_check_arguments(kpack_install)
  _kpack_refuse_unknown(kpack_install)
  _kpack_relative_defaults()
  # Rules of a directory run in order of declaration, so the rule that copies the files and sets
  # their RPATH comes first. It also reports problems with the targets in CMake's words.
  install(TARGETS ${kpack_TARGETS} ${kpack_FORWARDED})
  _kpack_add_hooks(kpack_install)
endfunction()

# kpack_split_installed(TARGETS <target>... MODULE <name> DESTINATION <dir> [COMPONENT <name>] ...)
#
# Splits targets that another command installed earlier in the same directory. Takes the arguments
# of kpack_install() that say where and when the files are installed. Without TARGETS:
#
# kpack_split_installed([MODULE <name>] [ARCHITECTURES <target ID>...] [KPACK_DESTINATION <dir>]
#                       [UNEXPECTED drop|error|keep] [SPIRV keep|drop|archive]
#                       [COMPRESSION zstd|none] [LEVEL <n>] [STRIP_DEBUG [DEBUG_DESTINATION <dir>]]
#                       [INSTALL_HINT <text>] [KERNEL_FILES <rule>...])
#
# Splits every binary that the project installs.
function(kpack_split_installed)
  _kpack_read_arguments(kpack_split_installed ${ARGN})
  if(kpack_TARGETS STREQUAL "")
    _kpack_split_everything(kpack_split_installed)
    return()
  endif()
  _kpack_check_arguments(kpack_split_installed)
  _kpack_relative_defaults()
  foreach(word IN LISTS kpack_FORWARDED)
    if(word MATCHES "^(EXPORT|PERMISSIONS|NAMELINK_COMPONENT|NAMELINK_ONLY|NAMELINK_SKIP|INCLUDES|FILE_SET|RUNTIME_DEPENDENCIES|RUNTIME_DEPENDENCY_SET)$")
      _kpack_fail(kpack_split_installed "${word} belongs to the command that installs the targets.")
    endif()
  endforeach()
  _kpack_refuse_unknown(kpack_split_installed)
  foreach(target IN LISTS kpack_TARGETS)
    if(NOT TARGET "${target}")
      _kpack_fail(kpack_split_installed "there is no target \"${target}\".")
    endif()
    get_target_property(imported "${target}" IMPORTED)
    get_target_property(type "${target}" TYPE)
    if(imported OR type STREQUAL "UTILITY")
      _kpack_fail(kpack_split_installed "\"${target}\" is not built here, so it is not installed.")
    endif()
    if(type MATCHES "^(EXECUTABLE|SHARED_LIBRARY|MODULE_LIBRARY)$")
      _kpack_kind(kind ${type})
      _kpack_artifact_argument(destination ${kind} DESTINATION)
      if(destination STREQUAL "")
        _kpack_fail(kpack_split_installed "DESTINATION is missing; name the directory where \"${target}\" is installed.")
      endif()
    endif()
  endforeach()
  _kpack_add_hooks(kpack_split_installed)
endfunction()

# Sets <output> to the install components that DEVICE_COMPONENTS and families have created so far, for lists such
# as CPACK_COMPONENTS_ALL.
function(kpack_device_components output)
  get_property(components GLOBAL PROPERTY KPACK_DEVICE_COMPONENTS)
  set(${output} "${components}" PARENT_SCOPE)
endfunction()

# Sets <output> to the install component for files that are for all GPUs of a family, such as gfx110x.
#
# kpack_family_component(<variable> FAMILY <name> [COMPONENT <name>])
#
# COMPONENT is that of the kpack_install() with DEVICE_COMPONENTS. CPack treats it as the component of a GPU.
function(kpack_family_component output)
  cmake_parse_arguments(PARSE_ARGV 1 kpack "" "FAMILY;COMPONENT" "")
  if(NOT "${kpack_UNPARSED_ARGUMENTS}" STREQUAL "")
    _kpack_fail(kpack_family_component "unknown arguments: ${kpack_UNPARSED_ARGUMENTS}.")
  endif()
  set(families gfx9 gfx90x gfx94x gfx95x gfx10 gfx101x gfx103x gfx11 gfx110x gfx115x gfx12 gfx120x gfx125x)
  if(NOT "${kpack_FAMILY}" IN_LIST families)
    list(JOIN families ", " families)
    _kpack_fail(kpack_family_component
      "FAMILY is \"${kpack_FAMILY}\" (expected a family of GPUs: ${families}).")
  endif()
  _kpack_effective_component("${kpack_COMPONENT}" effective)
  _kpack_device_component(kpack_family_component "${kpack_COMPONENT}" "${effective}" "${kpack_FAMILY}" device)
  set(${output} "${device}" PARENT_SCOPE)
endfunction()

cmake_policy(POP)
