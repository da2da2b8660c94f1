# Turns arguments into install rules: finds the files that a call installs, groups them by install
# component, and adds a rule that splits each group. Or adds one that splits all installed files.

include_guard(GLOBAL)
cmake_policy(PUSH)
cmake_policy(VERSION 3.22...3.31)

set_property(GLOBAL PROPERTY KPACK_PACKAGE_DIR "${CMAKE_CURRENT_LIST_DIR}")

# The artifact kind of a target's binary in install(TARGETS).
function(_kpack_kind output type)
  # A DLL is a RUNTIME artifact; what else a shared library has there is an import library.
  if(type STREQUAL "EXECUTABLE" OR (WIN32 AND type STREQUAL "SHARED_LIBRARY"))
    set(${output} RUNTIME PARENT_SCOPE)
  else()
    set(${output} LIBRARY PARENT_SCOPE)
  endif()
endfunction()

# Fails on systems whose binaries kpack does not split. Sets kpack_KPACK_DESTINATION in the caller's scope if it is empty.
function(_kpack_check_system command)
  if(APPLE)
    _kpack_fail(${command} "kpack splits ELF and PE binaries, which ${CMAKE_SYSTEM_NAME} does not use. "
      "Call install(TARGETS) there.")
  endif()
  if(WIN32 AND kpack_RUNTIME_SHIM)
    _kpack_fail(${command} "RUNTIME_SHIM: there is no shim for Windows.")
  endif()
  if(kpack_KPACK_DESTINATION STREQUAL "")
    # The library directory chosen by GNUInstallDirs or the user.
    if(DEFINED CMAKE_INSTALL_LIBDIR)
      set(kpack_KPACK_DESTINATION "${CMAKE_INSTALL_LIBDIR}/.kpack" PARENT_SCOPE)
      _kpack_check_destination(${command} CMAKE_INSTALL_LIBDIR "${CMAKE_INSTALL_LIBDIR}")
    else()
      set(kpack_KPACK_DESTINATION "lib/.kpack" PARENT_SCOPE)
    endif()
  endif()
endfunction()

# Sets <output> to the options of `kpack split` that the arguments stand for, each in brackets.
function(_kpack_options output)
  set(options "")
  foreach(target IN LISTS kpack_ARCHITECTURES)
    string(APPEND options " [==[--arch]==] [==[${target}]==]")
  endforeach()
  foreach(rule IN LISTS kpack_KERNEL_FILES)
    # The install runs in another directory.
    if(rule MATCHES "^@([^/].*)$")
      set(rule "@${CMAKE_CURRENT_SOURCE_DIR}/${CMAKE_MATCH_1}")
    endif()
    string(APPEND options " [==[--kernel-files=${rule}]==]")
  endforeach()
  foreach(keyword UNEXPECTED SPIRV COMPRESSION LEVEL INSTALL_HINT)
    if(NOT kpack_${keyword} STREQUAL "")
      string(TOLOWER "${keyword}" option)
      string(REPLACE "_" "-" option "${option}")
      string(APPEND options " [==[--${option}=${kpack_${keyword}}]==]")
    endif()
  endforeach()
  # With DEBUG_DESTINATION, the hook adds the option: only it knows the prefix.
  if((kpack_STRIP_DEBUG OR KPACK_STRIP_DEBUG) AND kpack_DEBUG_DESTINATION STREQUAL "")
    string(APPEND options " [==[--strip-debug]==]")
  endif()
  set(${output} "${options}" PARENT_SCOPE)
endfunction()

# Adds the rules for a call with parsed and checked arguments.
function(_kpack_add_hooks command)
  _kpack_check_system(${command})

  _kpack_split_at(${command} split_at)
  set(groups "")
  set(split_targets "")
  foreach(target IN LISTS kpack_TARGETS)
    get_target_property(type "${target}" TYPE)
    if(type STREQUAL "STATIC_LIBRARY" OR type STREQUAL "OBJECT_LIBRARY")
      if(kpack_RUNTIME_SHIM)
        _kpack_fail(${command} "RUNTIME_SHIM: nothing is linked into \"${target}\" (${type}). Give "
          "RUNTIME_SHIM to the call with the binaries that \"${target}\" is linked into.")
      endif()
      message(NOTICE "${command}(): \"${target}\" (${type}) is installed as it is: after this "
        "point its device code can be split only in the binaries it is linked into, or in the "
        "objects before that link. Pass those binaries to kpack_install().")
      set_property(TARGET "${target}" PROPERTY KPACK_INSTALLED_UNLINKED "${command}")
      continue()
    elseif(NOT type MATCHES "^(EXECUTABLE|SHARED_LIBRARY|MODULE_LIBRARY)$")
      continue() # INTERFACE libraries have no file.
    endif()
    _kpack_kind(kind ${type})
    _kpack_artifact_argument(namelink_only ${kind} NAMELINK_ONLY)
    if(namelink_only)
      continue() # That rule installs a symlink, not the binary.
    endif()
    list(APPEND split_targets "${target}")
    if(split_at STREQUAL "compile")
      _kpack_set_launcher(${command} "${target}")
    endif()
    if(kpack_RUNTIME_SHIM)
      _kpack_link_shim(${command} "${target}" ${kpack_RUNTIME_SHIM})
    endif()

    _kpack_artifact_argument(destination ${kind} DESTINATION)
    if(destination STREQUAL "")
      # The default of install(TARGETS).
      if(kind STREQUAL "RUNTIME")
        set(destination bin)
        set(variable CMAKE_INSTALL_BINDIR)
      else()
        set(destination lib)
        set(variable CMAKE_INSTALL_LIBDIR)
      endif()
      if(${variable})
        set(destination "${${variable}}")
      endif()
    endif()
    _kpack_check_destination(${command} "the destination of \"${target}\"" "${destination}")

    _kpack_artifact_argument(component ${kind} COMPONENT)
    _kpack_artifact_argument(configurations ${kind} CONFIGURATIONS)
    _kpack_artifact_argument(optional ${kind} OPTIONAL)
    _kpack_artifact_argument(excluded ${kind} EXCLUDE_FROM_ALL)
    string(TOLOWER "${configurations}" configurations)

    # One rule for each install component; EXCLUDE_FROM_ALL is a property of the rule too.
    set(group "${component}/${excluded}")
    list(FIND groups "${group}" index)
    if(index EQUAL -1)
      list(LENGTH groups index)
      list(APPEND groups "${group}")
      set(group_${index}_component "${component}")
      set(group_${index}_excluded "${excluded}")
      set(group_${index}_script "")
    endif()
    # Bracket arguments keep paths verbatim; file(GENERATE) evaluates their generator expressions.
    string(APPEND group_${index}_script
      "_kpack_hook_file([==[${target}]==] [==[${destination}]==] "
      "[==[$<TARGET_FILE_NAME:${target}>]==] [==[$<TARGET_FILE:${target}>]==] "
      "[==[${configurations}]==] [==[${optional}]==])\n")
  endforeach()

  _kpack_compare_with_hip_architectures(${command} "${split_targets}")

  set(index 0)
  foreach(group IN LISTS groups)
    _kpack_add_rule(${command}
      "${group_${index}_component}" "${group_${index}_excluded}" "${group_${index}_script}")
    math(EXPR index "${index} + 1")
  endforeach()
endfunction()

# Adds the rule (with DEVICE_COMPONENTS: the rules) for the files of one install component.
function(_kpack_add_rule command component excluded files)
  set(kpack_component "${kpack_KPACK_COMPONENT}")
  if(kpack_component STREQUAL "")
    if(component STREQUAL "")
      set(kpack_component lib)
    else()
      _kpack_check_name(${command} COMPONENT "${component}")
      set(kpack_component "${component}")
    endif()
  endif()
  _kpack_effective_component("${component}" effective)
  _kpack_claim(${command} "${kpack_component}" "${effective}")

  _kpack_options(options)

  # Generate a script for each configuration, since install(CODE) evaluates generator expressions
  # only if CMP0087 is NEW at the end of the caller's directory.
  get_property(package_dir GLOBAL PROPERTY KPACK_PACKAGE_DIR)
  get_property(number GLOBAL PROPERTY KPACK_RULE_COUNT)
  if(NOT number)
    set(number 0)
    # Which rule lists an archive, as an earlier configuration had it.
    file(REMOVE_RECURSE "${CMAKE_BINARY_DIR}/CMakeFiles/kpack/listed")
  endif()
  math(EXPR next "${number} + 1")
  set_property(GLOBAL PROPERTY KPACK_RULE_COUNT ${next})
  get_property(helper GLOBAL PROPERTY KPACK_HELPER)
  get_property(multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
  set(script "${CMAKE_BINARY_DIR}/CMakeFiles/kpack/${kpack_MODULE}_${kpack_component}_${number}")
  set(suffix "")
  if(multi_config)
    set(suffix "_$<LOWER_CASE:$<CONFIG>>")
  endif()
  file(GENERATE OUTPUT "${script}${suffix}.cmake" CONTENT
"# Generated by ${command}() in ${CMAKE_CURRENT_LIST_FILE}.
include([==[${package_dir}/KpackInstallHook.cmake]==])
_kpack_hook_begin([==[${command}]==] [==[${effective}]==] [==[${kpack_DEBUG_DESTINATION}]==])
${files}_kpack_hook_run(\"\${_kpack_mode}\" \"\${_kpack_target}\" [==[${helper}]==]
  [==[${kpack_MODULE}]==] [==[${kpack_component}]==] [==[${kpack_KPACK_DESTINATION}]==]${options})
")

  set(rule "")
  if(NOT component STREQUAL "")
    list(APPEND rule COMPONENT "${component}")
  endif()
  set(exclude "")
  if(excluded)
    set(exclude EXCLUDE_FROM_ALL)
  endif()
  if(kpack_DEVICE_COMPONENTS)
    # Device code first: the installed binary keeps its own until the host rule has run.
    foreach(target IN LISTS kpack_ARCHITECTURES)
      _kpack_device_component(${command} "${component}" "${effective}" "${target}" device_component)
      _kpack_install_code("${script}" device "${target}" COMPONENT "${device_component}" ${exclude})
    endforeach()
    _kpack_install_code("${script}" host "" ${rule} ${exclude})
  else()
    _kpack_install_code("${script}" all "" ${rule} ${exclude})
  endif()
endfunction()

# Sets <output> to the component that CMake takes if <component> is empty.
function(_kpack_effective_component component output)
  if(component STREQUAL "")
    set(component "${CMAKE_INSTALL_DEFAULT_COMPONENT_NAME}")
    if(component STREQUAL "")
      set(component Unspecified)
    endif()
  endif()
  set(${output} "${component}" PARENT_SCOPE)
endfunction()

# Adds the rule itself, which has no generator expressions.
function(_kpack_install_code script mode target)
  get_property(multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
  set(include "include(\"\${_kpack_script}.cmake\")")
  if(multi_config)
    # CMake ignores the case of configurations, and installs nothing for unknown ones.
    string(TOLOWER "${CMAKE_CONFIGURATION_TYPES}" configurations)
    string(REPLACE ";" "|" configurations "${configurations}")
    set(include "string(TOLOWER \"\${CMAKE_INSTALL_CONFIG_NAME}\" _kpack_config)
if(_kpack_config MATCHES \"^(${configurations})$\")
  include(\"\${_kpack_script}_\${_kpack_config}.cmake\")
endif()
unset(_kpack_config)")
  endif()
  install(CODE "set(_kpack_script [==[${script}]==])
set(_kpack_mode ${mode})
set(_kpack_target \"${target}\")
${include}
unset(_kpack_script)
unset(_kpack_mode)
unset(_kpack_target)" ${ARGN})
endfunction()

# Each kpack is written by one install component, because two packages must not own one file.
function(_kpack_claim command kpack_component component)
  cmake_path(SET directory NORMALIZE "${kpack_KPACK_DESTINATION}/")
  set(files "${directory}${kpack_MODULE}_${kpack_component}_*.kpack")
  set(claim "KPACK_CLAIM ${files}")
  set(value "${component}/${kpack_DEVICE_COMPONENTS}")
  get_property(claimed GLOBAL PROPERTY "${claim}")
  if(NOT "${claimed}" STREQUAL "")
    string(REGEX MATCH "^(.*)/([^/]*)$" _ "${claimed}")
    set(owner "${CMAKE_MATCH_1}")
    set(owner_has_device_components "${CMAKE_MATCH_2}")
    if(NOT owner STREQUAL component)
      _kpack_fail(${command} "${files} would be written by two install components, \"${owner}\" and "
        "\"${component}\", so two packages would own the same files. Give them different "
        "MODULE or KPACK_COMPONENT names.")
    elseif(kpack_DEVICE_COMPONENTS OR owner_has_device_components)
      _kpack_fail(${command} "An earlier rule already writes ${files}. With DEVICE_COMPONENTS "
        "a package's manifest and archives are made from all their binaries at once: name all "
        "targets of module \"${kpack_MODULE}\" in one call (with the same COMPONENT, and "
        "EXCLUDE_FROM_ALL for all or none), or give this call another MODULE or KPACK_COMPONENT.")
    endif()
  endif()
  set_property(GLOBAL PROPERTY "${claim}" "${value}")
  if(kpack_DEVICE_COMPONENTS)
    set_property(GLOBAL APPEND PROPERTY KPACK_MODULES_WITH_DEVICE_COMPONENTS "${kpack_MODULE}")
  endif()
endfunction()

# kpack_split_installed() without TARGETS.
function(_kpack_split_everything command)
  if(NOT kpack_FORWARDED STREQUAL "")
    list(JOIN kpack_FORWARDED " " words)
    _kpack_fail(${command} "without TARGETS, it splits everything that the project installs, and does not "
      "accept the arguments \"${words}\". Name the TARGETS.")
  endif()
  foreach(keyword DEVICE_COMPONENTS RUNTIME_SHIM SPLIT_AT KPACK_COMPONENT)
    if(NOT kpack_${keyword} STREQUAL "")
      _kpack_fail(${command} "${keyword} needs TARGETS: without them, kpack knows no file before it is installed.")
    endif()
  endforeach()
  set(kpack_EVERYTHING TRUE)
  if(kpack_MODULE STREQUAL "")
    set(kpack_MODULE "${CMAKE_PROJECT_NAME}")
  endif()
  _kpack_check_arguments(${command})
  _kpack_relative_defaults()
  _kpack_check_system(${command})
  get_property(earlier GLOBAL PROPERTY KPACK_EVERYTHING)
  if(earlier)
    _kpack_fail(${command} "is called without TARGETS a second time. One call splits everything that the "
      "project installs.")
  endif()
  set_property(GLOBAL PROPERTY KPACK_EVERYTHING TRUE)
  get_property(package_dir GLOBAL PROPERTY KPACK_PACKAGE_DIR)
  get_property(helper GLOBAL PROPERTY KPACK_HELPER)
  _kpack_options(options)
  set(script "${CMAKE_BINARY_DIR}/CMakeFiles/kpack/everything.cmake")
  file(WRITE "${script}"
"# Generated by ${command}() in ${CMAKE_CURRENT_LIST_FILE}.
include([==[${package_dir}/KpackInstallHook.cmake]==])
_kpack_hook_begin([==[${command}]==] \"\" [==[${kpack_DEBUG_DESTINATION}]==])
_kpack_hook_everything([==[${helper}]==] [==[${kpack_MODULE}]==] [==[${kpack_KPACK_DESTINATION}]==]${options})
")
  # Last in the top-level directory, whose policy says when the rules of subdirectories run. Use EVAL
  # CODE: a function has the policies of its definition.
  cmake_language(EVAL CODE "cmake_language(DEFER DIRECTORY [==[${CMAKE_SOURCE_DIR}]==] CALL
    cmake_language EVAL CODE [====[cmake_policy(GET CMP0082 _kpack_policy)
_kpack_add_last_rule([==[${command}]==] \"\${_kpack_policy}\" [==[${kpack_MODULE}]==] [==[${script}]==])
unset(_kpack_policy)]====])")
endfunction()

# Adds the rule that runs after all others.
function(_kpack_add_last_rule command subdirectory_order module script)
  get_property(parallel GLOBAL PROPERTY INSTALL_PARALLEL)
  if(parallel)
    _kpack_fail(${command} "without TARGETS, it needs the install rules of all directories to run one after "
      "the other, but INSTALL_PARALLEL is on. Turn it off, or name the TARGETS in each directory.")
  elseif(NOT subdirectory_order STREQUAL "NEW")
    _kpack_fail(${command} "without TARGETS, it needs policy CMP0082, so that its rule runs after those of "
      "subdirectories. Require CMake 3.14 or newer in the top-level directory, or name the TARGETS.")
  endif()
  get_property(modules GLOBAL PROPERTY KPACK_MODULES_WITH_DEVICE_COMPONENTS)
  if(module IN_LIST modules)
    _kpack_fail(${command} "A call with DEVICE_COMPONENTS already has module \"${module}\". Give this call "
      "another MODULE.")
  endif()
  install(CODE "include([==[${script}]==])" ALL_COMPONENTS)
endfunction()

# Compares ARCHITECTURES with the HIP compiler's targets, and warns of what the install would reject or
# skip. It is only a warning, since flags can add targets that no property shows.
function(_kpack_compare_with_hip_architectures command targets)
  if(kpack_ARCHITECTURES STREQUAL "")
    return()
  endif()
  set(built "")
  foreach(target IN LISTS targets)
    get_target_property(architectures "${target}" HIP_ARCHITECTURES)
    if(NOT architectures)
      continue()
    endif()
    if(architectures MATCHES "\\$<|(^|;)(all|all-major|native)(;|$)")
      return() # Not known here.
    endif()
    list(APPEND built ${architectures})
  endforeach()
  if(built STREQUAL "")
    return()
  endif()
  list(REMOVE_DUPLICATES built)
  list(JOIN built " " built_words)
  # The install compares variants (gfx90a:xnack+); processors suffice for a warning.
  set(missing ${kpack_ARCHITECTURES})
  set(unexpected ${built})
  list(TRANSFORM missing REPLACE ":.*" "")
  list(TRANSFORM unexpected REPLACE ":.*" "")
  set(expected_processors ${missing})
  set(built_processors ${unexpected})
  list(REMOVE_ITEM missing ${built_processors})
  list(REMOVE_ITEM unexpected ${expected_processors})
  if(missing)
    list(JOIN missing " " words)
    message(WARNING "${command}(): ARCHITECTURES has ${words}, but HIP_ARCHITECTURES of the targets "
      "of module \"${kpack_MODULE}\" is ${built_words}. Unless other flags add it, the install "
      "will stop because no file has code for it.")
  endif()
  if(unexpected AND NOT kpack_UNEXPECTED STREQUAL "keep")
    list(JOIN unexpected " " words)
    if(kpack_UNEXPECTED STREQUAL "error")
      set(effect "the install will stop, since UNEXPECTED is error")
    else()
      set(effect "the install will skip its code")
    endif()
    message(WARNING "${command}(): HIP_ARCHITECTURES of the targets of module \"${kpack_MODULE}\" has "
      "${words}, but ARCHITECTURES does not: ${effect}.")
  endif()
endfunction()

cmake_policy(POP)
