# Parses the arguments of kpack_install() and kpack_split_installed(). Removes kpack's own, keeps those
# of install(TARGETS) in order, and reads those of them that the install hook must follow.

include_guard(GLOBAL)
cmake_policy(PUSH)
cmake_policy(VERSION 3.22...3.31)

# Ends the configuration with an error that names the call.
function(_kpack_fail command)
  # Avoid list operations, since the text may contain semicolons.
  set(text "")
  math(EXPR last "${ARGC} - 1")
  foreach(index RANGE 1 ${last})
    string(APPEND text "${ARGV${index}}")
  endforeach()
  message(FATAL_ERROR "${command}(): ${text}")
endfunction()

# Reads ARGN, and sets in the caller's scope:
#   kpack_TARGETS kpack_MODULE kpack_KPACK_COMPONENT kpack_ARCHITECTURES kpack_KPACK_DESTINATION
#   kpack_KERNEL_FILES kpack_DEVICE_COMPONENTS kpack_UNEXPECTED kpack_SPIRV kpack_COMPRESSION kpack_LEVEL
#   kpack_STRIP_DEBUG kpack_DEBUG_DESTINATION
#   kpack_SPLIT_AT kpack_INSTALL_HINT kpack_RUNTIME_SHIM
#   kpack_FORWARDED     the arguments that are install(TARGETS)'s own, in the order given
#   kpack_UNKNOWN       words that follow no keyword that takes them
#   kpack_<KIND>_<KEY>  for each artifact kind, or GENERAL for arguments before the first kind
function(_kpack_read_arguments command)
  # The artifact kinds, which group the arguments after them (CMake manual, install(TARGETS)).
  set(kinds ARCHIVE LIBRARY RUNTIME OBJECTS FRAMEWORK BUNDLE PRIVATE_HEADER PUBLIC_HEADER RESOURCE
    FILE_SET CXX_MODULES_BMI INCLUDES)
  set(own_single MODULE KPACK_COMPONENT KPACK_DESTINATION UNEXPECTED SPIRV COMPRESSION LEVEL
    SPLIT_AT INSTALL_HINT DEBUG_DESTINATION)
  set(own_multiple TARGETS ARCHITECTURES KERNEL_FILES)
  set(own_flags DEVICE_COMPONENTS RUNTIME_SHIM STRIP_DEBUG)
  set(install_single DESTINATION COMPONENT NAMELINK_COMPONENT EXPORT RUNTIME_DEPENDENCY_SET)
  set(install_multiple PERMISSIONS CONFIGURATIONS RUNTIME_DEPENDENCIES DIRECTORIES
    PRE_INCLUDE_REGEXES PRE_EXCLUDE_REGEXES POST_INCLUDE_REGEXES POST_EXCLUDE_REGEXES
    POST_INCLUDE_FILES POST_EXCLUDE_FILES)
  set(install_flags OPTIONAL EXCLUDE_FROM_ALL NAMELINK_ONLY NAMELINK_SKIP)
  set(keywords ${kinds} ${own_single} ${own_multiple} ${own_flags}
    ${install_single} ${install_multiple} ${install_flags})

  set(kpack_FORWARDED "")
  set(kpack_UNKNOWN "")
  foreach(name IN LISTS own_single own_multiple own_flags)
    set(kpack_${name} "")
  endforeach()
  set(read "")
  set(kind GENERAL)
  # The keyword whose values follow, and how many it takes.
  set(keyword "")
  set(expects none)
  foreach(word IN LISTS ARGN)
    if(word IN_LIST keywords)
      if(expects STREQUAL "one")
        _kpack_fail(${command} "${keyword} needs a value, but ${word} follows it.")
      endif()
      set(keyword "${word}")
      set(expects none)
    endif()

    if(NOT word IN_LIST keywords)
      if(keyword IN_LIST own_single OR keyword IN_LIST own_multiple)
        list(APPEND kpack_${keyword} "${word}")
        if(keyword IN_LIST own_single)
          set(keyword "")
        endif()
      elseif(keyword STREQUAL "RUNTIME_SHIM" AND word STREQUAL "shared")
        set(kpack_RUNTIME_SHIM shared)
        set(keyword "")
      else()
        if(keyword STREQUAL "DESTINATION" AND NOT kind STREQUAL "INCLUDES")
          _kpack_relative("${word}" word)
        endif()
        list(APPEND kpack_FORWARDED "${word}")
        if(keyword IN_LIST install_single OR keyword IN_LIST install_multiple)
          list(APPEND kpack_${kind}_${keyword} "${word}")
          list(APPEND read ${kind}_${keyword})
        elseif(NOT keyword STREQUAL "FILE_SET")
          list(APPEND kpack_UNKNOWN "${word}")
        endif()
        # Only INCLUDES DESTINATION takes several values.
        if(expects STREQUAL "one" AND NOT kind STREQUAL "INCLUDES")
          set(keyword "")
        endif()
      endif()
      set(expects none)
    elseif(word IN_LIST own_flags)
      set(kpack_${word} TRUE)
    elseif(word IN_LIST own_single)
      if(NOT kpack_${word} STREQUAL "")
        _kpack_fail(${command} "${word} is given twice.")
      endif()
      set(expects one)
    elseif(word IN_LIST own_multiple)
      # Values follow.
    else()
      list(APPEND kpack_FORWARDED "${word}")
      if(word IN_LIST kinds)
        set(kind ${word})
      elseif(word IN_LIST install_flags)
        set(kpack_${kind}_${word} TRUE)
        list(APPEND read ${kind}_${word})
      elseif(word IN_LIST install_single)
        set(expects one)
      endif()
    endif()
  endforeach()
  if(expects STREQUAL "one")
    _kpack_fail(${command} "${keyword} needs a value.")
  endif()

  _kpack_relative("${kpack_KPACK_DESTINATION}" kpack_KPACK_DESTINATION)

  foreach(name IN LISTS own_single own_multiple own_flags read ITEMS FORWARDED UNKNOWN)
    set(kpack_${name} "${kpack_${name}}" PARENT_SCOPE)
  endforeach()
endfunction()

# Sets <output> to <destination>, relative to CMAKE_INSTALL_PREFIX if it is an absolute path below it.
# Nix and many RPM macros set CMAKE_INSTALL_LIBDIR and the like to such paths.
function(_kpack_relative destination output)
  if(IS_ABSOLUTE "${destination}")
    cmake_path(SET prefix NORMALIZE "${CMAKE_INSTALL_PREFIX}")
    cmake_path(SET directory NORMALIZE "${destination}")
    cmake_path(IS_PREFIX prefix "${directory}" below)
    if(below)
      cmake_path(RELATIVE_PATH directory BASE_DIRECTORY "${prefix}" OUTPUT_VARIABLE destination)
    endif()
  endif()
  set(${output} "${destination}" PARENT_SCOPE)
endfunction()

# Makes the directories that install(TARGETS) takes by default relative, in the caller's scope.
macro(_kpack_relative_defaults)
  foreach(_kpack_directory BINDIR SBINDIR LIBEXECDIR LIBDIR INCLUDEDIR)
    if(DEFINED CMAKE_INSTALL_${_kpack_directory})
      _kpack_relative("${CMAKE_INSTALL_${_kpack_directory}}" CMAKE_INSTALL_${_kpack_directory})
    endif()
  endforeach()
endmacro()

# Rejects words that no keyword takes.
function(_kpack_refuse_unknown command)
  if(NOT kpack_UNKNOWN STREQUAL "")
    list(JOIN kpack_UNKNOWN " " words)
    _kpack_fail(${command} "does not accept the arguments \"${words}\".")
  endif()
endfunction()

# Sets <output> to the value of <key> that install(TARGETS) uses for an artifact of <kind>: its own,
# or the general one.
function(_kpack_artifact_argument output kind key)
  if(NOT "${kpack_${kind}_${key}}" STREQUAL "")
    set(${output} "${kpack_${kind}_${key}}" PARENT_SCOPE)
  else()
    set(${output} "${kpack_GENERAL_${key}}" PARENT_SCOPE)
  endif()
endfunction()

# Checks everything that does not depend on targets: names, target IDs, destinations, choices. Sets
# kpack_ARCHITECTURES in the caller's scope to canonical target IDs without repetitions.
function(_kpack_check_arguments command)
  if(kpack_TARGETS STREQUAL "" AND NOT kpack_EVERYTHING)
    _kpack_fail(${command} "TARGETS is missing; name the targets to split.")
  endif()
  if(kpack_MODULE STREQUAL "")
    _kpack_fail(${command} "MODULE is missing. The archives are named after it, "
      "as in lib/.kpack/<module>_lib_gfx1100.kpack.")
  endif()
  foreach(keyword MODULE KPACK_COMPONENT)
    if(NOT kpack_${keyword} STREQUAL "")
      _kpack_check_name(${command} ${keyword} "${kpack_${keyword}}")
    endif()
  endforeach()
  if(NOT kpack_UNEXPECTED MATCHES "^(|drop|error|keep)$")
    _kpack_fail(${command} "UNEXPECTED is \"${kpack_UNEXPECTED}\" (expected drop, error or keep).")
  endif()
  if(NOT kpack_UNEXPECTED STREQUAL "" AND kpack_ARCHITECTURES STREQUAL "")
    _kpack_fail(${command} "UNEXPECTED needs ARCHITECTURES: without them every target is expected.")
  endif()
  if(NOT kpack_SPIRV MATCHES "^(|keep|drop|archive)$")
    _kpack_fail(${command} "SPIRV is \"${kpack_SPIRV}\" (expected keep, drop or archive).")
  endif()
  if(NOT kpack_DEBUG_DESTINATION STREQUAL "" AND NOT (kpack_STRIP_DEBUG OR KPACK_STRIP_DEBUG))
    _kpack_fail(${command} "DEBUG_DESTINATION needs STRIP_DEBUG: debug information stays in the archives.")
  endif()
  if(NOT kpack_COMPRESSION MATCHES "^(|zstd|none)$")
    _kpack_fail(${command} "COMPRESSION is \"${kpack_COMPRESSION}\" (expected zstd or none).")
  endif()
  if(NOT kpack_LEVEL MATCHES "^([1-9]|1[0-9]|2[0-2])?$")
    _kpack_fail(${command} "LEVEL is \"${kpack_LEVEL}\" (expected 1 to 22).")
  endif()
  if(kpack_DEVICE_COMPONENTS)
    if(kpack_ARCHITECTURES STREQUAL "")
      set(hint "")
      if(CMAKE_HIP_ARCHITECTURES)
        set(hint " (CMAKE_HIP_ARCHITECTURES is \"${CMAKE_HIP_ARCHITECTURES}\")")
      endif()
      _kpack_fail(${command} "DEVICE_COMPONENTS needs ARCHITECTURES: "
        "there is one install component for each of them${hint}.")
    endif()
    if(kpack_UNEXPECTED STREQUAL "keep")
      _kpack_fail(${command} "UNEXPECTED keep cannot be combined with DEVICE_COMPONENTS: "
        "no component would hold the code of a target that ARCHITECTURES does not name.")
    endif()
  endif()
  _kpack_check_destination(${command} KPACK_DESTINATION "${kpack_KPACK_DESTINATION}")

  _kpack_read_targets(${command} canonical ${kpack_ARCHITECTURES})
  if(kpack_DEVICE_COMPONENTS)
    foreach(target IN LISTS canonical)
      string(REGEX REPLACE ":.*" "" processor "${target}")
      if(NOT target STREQUAL processor AND processor IN_LIST canonical)
        _kpack_fail(${command} "ARCHITECTURES has ${processor} and ${target}: ${processor} stands for its "
          "variants too, so two components of DEVICE_COMPONENTS would hold one archive. Name one of them.")
      endif()
    endforeach()
  endif()
  set(kpack_ARCHITECTURES "${canonical}" PARENT_SCOPE)
endfunction()

# Sets <output> to the target IDs in their usual form, without repetitions. The helper reads them, so
# that CMake and the command accept the same names.
function(_kpack_read_targets command output)
  set(${output} "" PARENT_SCOPE)
  if(ARGN STREQUAL "")
    return()
  endif()
  get_property(helper GLOBAL PROPERTY KPACK_HELPER)
  execute_process(COMMAND "${helper}" targets -- ${ARGN}
    RESULT_VARIABLE result OUTPUT_VARIABLE targets ERROR_VARIABLE said
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
  if(NOT result EQUAL 0)
    string(REGEX REPLACE "^kpack: error: " "" said "${said}")
    _kpack_fail(${command} "ARCHITECTURES: ${said}")
  endif()
  if(NOT said STREQUAL "")
    string(REGEX REPLACE "(^|\n)kpack: warning: " "\\1" said "${said}")
    message(WARNING "${command}(): ARCHITECTURES: ${said}")
  endif()
  string(REPLACE "\n" ";" targets "${targets}")
  set(${output} "${targets}" PARENT_SCOPE)
endfunction()

# Checks a name that becomes part of file names.
function(_kpack_check_name command keyword name)
  if(NOT name MATCHES "^[A-Za-z0-9][A-Za-z0-9.+_-]*$")
    set(remedy "")
    if(keyword STREQUAL "COMPONENT")
      set(remedy "; choose the name in the names of archives with KPACK_COMPONENT")
    endif()
    _kpack_fail(${command} "${keyword} is \"${name}\". It becomes part of file names and may contain "
      "letters, digits, and after the first character also . + _ -${remedy}.")
  endif()
endfunction()

# Checks a directory in the install prefix. Generator expressions are checked when installing.
function(_kpack_check_destination command keyword destination)
  cmake_path(SET normal NORMALIZE "${destination}")
  if(IS_ABSOLUTE "${destination}")
    _kpack_fail(${command} "${keyword} is \"${destination}\", an absolute path. Kernel "
      "names and the paths from a binary to its archives are relative to the install prefix: "
      "choose a directory below CMAKE_INSTALL_PREFIX (${CMAKE_INSTALL_PREFIX}).")
  elseif(normal MATCHES "^\\.\\.(/|$)")
    _kpack_fail(${command} "${keyword} is \"${destination}\", which leaves the install prefix.")
  endif()
endfunction()

cmake_policy(POP)
