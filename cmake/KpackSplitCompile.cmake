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
  get_target_property(known "${target}" KPACK_SPLIT_COMPILE)
  if(known)
    return()
  endif()
  set_property(TARGET "${target}" PROPERTY KPACK_SPLIT_COMPILE "${command}")
  # The archives beside the objects. Without objects this must name nothing.
  set(objects "$<TARGET_OBJECTS:${target}>")
  set_property(TARGET "${target}" APPEND PROPERTY ADDITIONAL_CLEAN_FILES
    "$<$<BOOL:${objects}>:$<JOIN:${objects},.kpack$<SEMICOLON>>.kpack>")
  # When everything is said about the target, also by directories above. As code, since arguments of
  # a deferred call are evaluated when it is made.
  cmake_language(EVAL CODE "cmake_language(DEFER DIRECTORY [==[${CMAKE_SOURCE_DIR}]==] CALL
    _kpack_check_launcher [==[${command}]==] [==[${target}]==])")
endfunction()

# Stops where what was said later about a target undoes its split, or takes it out of the build tree.
function(_kpack_check_launcher command target)
  foreach(language C CXX HIP)
    get_target_property(launcher "${target}" ${language}_COMPILER_LAUNCHER)
    if(NOT launcher MATCHES ";launch;--module;")
      _kpack_fail(${command} "${language}_COMPILER_LAUNCHER of \"${target}\" was set after this "
        "call, so that nothing would split its objects. Set it before, or set "
        "CMAKE_${language}_COMPILER_LAUNCHER before the target is made; the launcher that is there "
        "then runs behind kpack's.")
    endif()
  endforeach()
  get_target_property(installed "${target}" KPACK_INSTALLED_UNLINKED)
  if(installed)
    _kpack_fail(${command} "the objects of \"${target}\" lead to their archives in the build tree, "
      "but ${installed}() installs \"${target}\" itself. Leave it out of one of the two: what is "
      "installed to be linked elsewhere keeps its device code.")
  endif()
endfunction()

cmake_policy(POP)
