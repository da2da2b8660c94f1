# SPLIT_AT compile: a compiler launcher splits objects as they are compiled.

include_guard(GLOBAL)
cmake_policy(PUSH)
cmake_policy(VERSION 3.22...3.31)

# kpack_split_compile(TARGETS <target>... MODULE <name> [SPIRV keep|drop|archive]
#                     [COMPRESSION zstd|none] [LEVEL <n>])
#
# Splits the objects of targets as they are compiled. Use it for object and static libraries that
# are linked into binaries of kpack_install(... SPLIT_AT compile).
function(kpack_split_compile)
  _kpack_read_arguments(kpack_split_compile ${ARGN})
  _kpack_check_arguments(kpack_split_compile)
  _kpack_refuse_unknown(kpack_split_compile)
  if(NOT kpack_FORWARDED STREQUAL "")
    list(JOIN kpack_FORWARDED " " words)
    _kpack_fail(kpack_split_compile "does not accept the arguments \"${words}\".")
  endif()
  foreach(target IN LISTS kpack_TARGETS)
    if(NOT TARGET "${target}")
      _kpack_fail(kpack_split_compile "there is no target \"${target}\".")
    endif()
    _kpack_set_launcher(kpack_split_compile "${target}")
  endforeach()
endfunction()

# Sets <output> to the call's SPLIT_AT, or else KPACK_SPLIT_AT.
function(_kpack_split_at command output)
  set(value "${kpack_SPLIT_AT}")
  if(value STREQUAL "" AND DEFINED KPACK_SPLIT_AT)
    set(value "${KPACK_SPLIT_AT}")
  endif()
  if(value STREQUAL "")
    set(value install)
  endif()
  if(NOT value MATCHES "^(compile|install)$")
    _kpack_fail(${command} "SPLIT_AT is \"${value}\" (expected compile or install).")
  endif()
  if(WIN32 AND value STREQUAL "compile")
    _kpack_fail(${command} "SPLIT_AT compile: kpack does not split objects for Windows. Use SPLIT_AT install.")
  endif()
  set(${output} "${value}" PARENT_SCOPE)
endfunction()

# Prepends the helper to the compiler launchers of a target.
function(_kpack_set_launcher command target)
  if(NOT CMAKE_GENERATOR MATCHES "Ninja|Makefiles")
    _kpack_fail(${command} "SPLIT_AT compile needs compiler launchers, which the generator "
      "\"${CMAKE_GENERATOR}\" does not have: use Ninja or Makefiles, or SPLIT_AT install.")
  endif()
  get_property(helper GLOBAL PROPERTY KPACK_HELPER)
  set(launcher "${helper}" launch --module "${kpack_MODULE}")
  foreach(keyword SPIRV COMPRESSION LEVEL)
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
    # A target named again keeps its launcher.
    if(NOT others MATCHES ";launch;--module;")
      set_property(TARGET "${target}" PROPERTY
        ${language}_COMPILER_LAUNCHER ${launcher} -- ${others})
    endif()
  endforeach()
  get_target_property(known "${target}" KPACK_SPLIT_COMPILE)
  if(known)
    return()
  endif()
  set_property(TARGET "${target}" PROPERTY KPACK_SPLIT_COMPILE "${command}")
  # The archives next to the objects; empty without objects.
  set(objects "$<TARGET_OBJECTS:${target}>")
  set_property(TARGET "${target}" APPEND PROPERTY ADDITIONAL_CLEAN_FILES
    "$<$<BOOL:${objects}>:$<JOIN:${objects},.kpack$<SEMICOLON>>.kpack>")
  # Run when the target is complete, including properties set by parent directories. Use EVAL CODE,
  # since arguments of a deferred call are evaluated when it is made.
  cmake_language(EVAL CODE "cmake_language(DEFER DIRECTORY [==[${CMAKE_SOURCE_DIR}]==] CALL
    _kpack_check_launcher [==[${command}]==] [==[${target}]==])")
endfunction()

# Fails if later settings of a target undo its split or install its objects.
function(_kpack_check_launcher command target)
  foreach(language C CXX HIP)
    get_target_property(launcher "${target}" ${language}_COMPILER_LAUNCHER)
    if(NOT launcher MATCHES ";launch;--module;")
      _kpack_fail(${command} "${language}_COMPILER_LAUNCHER of \"${target}\" was set after this "
        "call, so nothing would split its objects. Set it before, or set "
        "CMAKE_${language}_COMPILER_LAUNCHER before the target is created; that launcher "
        "then runs after kpack's.")
    endif()
  endforeach()
  get_target_property(installed "${target}" KPACK_INSTALLED_UNLINKED)
  if(installed)
    _kpack_fail(${command} "the objects of \"${target}\" refer to their archives in the build tree, "
      "but ${installed}() installs \"${target}\" itself. Remove it from one of the two calls: a library "
      "installed for linking elsewhere keeps its device code.")
  endif()
endfunction()

cmake_policy(POP)
