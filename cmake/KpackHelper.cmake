# Finds the helper and checks that it belongs to this package.

include_guard(GLOBAL)
cmake_policy(PUSH)
cmake_policy(VERSION 3.22...3.31)

# Sets <helper> to the path of the executable, or <problem> to the reason why there is none.
function(_kpack_find_helper package_dir version helper problem)
  set(${helper} "" PARENT_SCOPE)
  set(${problem} "" PARENT_SCOPE)
  set(remedy "set Kpack_EXECUTABLE to the helper, for example with -DKpack_EXECUTABLE=/path/to/kpack")

  get_filename_component(above "${package_dir}" DIRECTORY)
  cmake_path(SET prefix NORMALIZE "${package_dir}/../../..")
  if(Kpack_EXECUTABLE)
    set(found "${Kpack_EXECUTABLE}")
    if(NOT IS_ABSOLUTE "${found}" OR NOT EXISTS "${found}" OR IS_DIRECTORY "${found}")
      set(${problem}
        "Kpack_EXECUTABLE is \"${found}\" (expected the absolute path of a file)." PARENT_SCOPE)
      return()
    endif()
  elseif(EXISTS "${above}/Cargo.toml")
    # In a source tree, use only the helper that it built, not an installed one.
    set(found "")
    foreach(profile IN ITEMS debug release dist)
      set(built "${above}/target/${profile}/kpack")
      if(EXISTS "${built}" AND (NOT found OR "${built}" IS_NEWER_THAN "${found}"))
        set(found "${built}")
      endif()
    endforeach()
    if(NOT found)
      set(${problem}
        "The helper has not been built: run \"cargo build --release -p kpack-cli\" in ${above}, or ${remedy}."
        PARENT_SCOPE)
      return()
    endif()
  elseif(EXISTS "${prefix}/bin/kpack")
    cmake_path(SET found NORMALIZE "${prefix}/bin/kpack")
  else()
    # A sysroot or find root holds programs of the target machine.
    find_program(found NAMES kpack NO_CACHE NO_CMAKE_FIND_ROOT_PATH)
    if(NOT found)
      cmake_path(SET expected NORMALIZE "${prefix}/bin/kpack")
      set(${problem}
        "The helper kpack is neither at ${expected} nor on the PATH; install it there, or ${remedy}."
        PARENT_SCOPE)
      return()
    endif()
  endif()

  execute_process(COMMAND "${found}" --version
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE error
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
  if(NOT result EQUAL 0)
    set(${problem}
      "The helper ${found} does not run on this machine (${result}) ${error}; ${remedy}." PARENT_SCOPE)
  elseif(NOT output MATCHES "^kpack ([0-9][^ ]*)")
    set(${problem}
      "${found} is not the helper: \"${found} --version\" printed \"${output}\"; ${remedy}."
      PARENT_SCOPE)
  elseif(NOT CMAKE_MATCH_1 STREQUAL version)
    set(${problem}
      "The helper ${found} has version ${CMAKE_MATCH_1}, its CMake package in ${package_dir} has ${version}; ${remedy}."
      PARENT_SCOPE)
  else()
    set(${helper} "${found}" PARENT_SCOPE)
  endif()
endfunction()

cmake_policy(POP)
