# SPLIT_AT compile: objects are split as they are compiled, by a compiler launcher.

include_guard(GLOBAL)
cmake_policy(PUSH)
cmake_policy(VERSION 3.22...3.31)

# kpack_split_compile(TARGETS <target>... MODULE <name> [COMPRESSION zstd|none] [LEVEL <n>])
#
# Splits the objects of targets as they are compiled. For object and static libraries that binaries
# of kpack_install(... SPLIT_AT compile) are made of.
function(kpack_split_compile)
  _kpack_read_arguments(kpack_split_compile ${ARGN})
  _kpack_check_arguments(kpack_split_compile)
  _kpack_refuse_unknown(kpack_split_compile)
  if(NOT kpack_FORWARDED STREQUAL "")
    list(JOIN kpack_FORWARDED " " words)
    _kpack_fail(kpack_split_compile "does not know what to do with \"${words}\".")
  endif()
  foreach(target IN LISTS kpack_TARGETS)
    if(NOT TARGET "${target}")
      _kpack_fail(kpack_split_compile "there is no target \"${target}\".")
    endif()
    _kpack_set_launcher(kpack_split_compile "${target}")
  endforeach()
endfunction()

# Sets <output> to where a call splits: its SPLIT_AT, or KPACK_SPLIT_AT.
function(_kpack_split_at command output)
  set(value "${kpack_SPLIT_AT}")
  if(value STREQUAL "" AND DEFINED KPACK_SPLIT_AT)
    set(value "${KPACK_SPLIT_AT}")
  endif()
  if(value STREQUAL "")
    set(value install)
  endif()
  if(NOT value MATCHES "^(compile|install)$")
    _kpack_fail(${command} "SPLIT_AT is \"${value}\"; it can be compile or install.")
  endif()
  set(${output} "${value}" PARENT_SCOPE)
endfunction()

# Puts the helper in front of the compiler launchers of a target.
function(_kpack_set_launcher command target)
  if(NOT CMAKE_GENERATOR MATCHES "Ninja|Makefiles")
    _kpack_fail(${command} "SPLIT_AT compile needs compiler launchers, which the generator "
      "\"${CMAKE_GENERATOR}\" does not have: use Ninja or Makefiles, or SPLIT_AT install.")
  endif()
  get_property(helper GLOBAL PROPERTY KPACK_HELPER)
  set(launcher "${helper}" launch --module "${kpack_MODULE}")
  foreach(keyword COMPRESSION LEVEL)
    if(NOT kpack_${keyword} STREQUAL "")
      string(TOLOWER "${keyword}" option)
      list(APPEND launcher "--${option}=${kpack_${keyword}}")
    endif()
  endforeach()
  foreach(language C CXX HIP)
    get_target_property(others "${target}" ${language}_COMPILER_LAUNCHER)
    if(NOT others)
      set(others "")
    endif()
    # A target that is named again keeps the launcher that it has.
    if(NOT others MATCHES ";launch;--module;")
      set_property(TARGET "${target}" PROPERTY
        ${language}_COMPILER_LAUNCHER ${launcher} -- ${others})
    endif()
  endforeach()
endfunction()

cmake_policy(POP)
