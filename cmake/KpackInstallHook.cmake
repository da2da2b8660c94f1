# Runs during the install, after the rule that installs the files.

include_guard(GLOBAL)
# Install scripts have no policies set; functions keep these ones.
cmake_policy(PUSH)
cmake_policy(VERSION 3.22...3.31)

# Starts the list of files of one rule.
function(_kpack_hook_begin command)
  set_property(GLOBAL PROPERTY KPACK_HOOK_COMMAND "${command}")
  set_property(GLOBAL PROPERTY KPACK_HOOK_FILE_COUNT 0)
endfunction()

# Adds a file: <destination>/<name> in the prefix, <built> in the build tree.
function(_kpack_hook_file target destination name built configurations optional)
  string(TOLOWER "${CMAKE_INSTALL_CONFIG_NAME}" configuration)
  if(NOT configurations STREQUAL "" AND NOT configuration IN_LIST configurations)
    return()
  endif()
  get_property(index GLOBAL PROPERTY KPACK_HOOK_FILE_COUNT)
  foreach(field IN ITEMS target destination name built optional)
    set_property(GLOBAL PROPERTY KPACK_HOOK_FILE_${index}_${field} "${${field}}")
  endforeach()
  math(EXPR index "${index} + 1")
  set_property(GLOBAL PROPERTY KPACK_HOOK_FILE_COUNT ${index})
endfunction()

# Splits the files. <mode> is all, host or device; with device, <device_target> is the target ID.
# Further arguments are options of the helper.
function(_kpack_hook_run mode device_target helper module component kpack_destination)
  get_property(command GLOBAL PROPERTY KPACK_HOOK_COMMAND)
  get_property(count GLOBAL PROPERTY KPACK_HOOK_FILE_COUNT)
  set(prefix "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
  if(prefix STREQUAL "")
    set(prefix "/") # cmake_install.cmake removes the slash.
  endif()
  get_filename_component(prefix "${prefix}" ABSOLUTE)
  set(options ${ARGN})
  if(mode STREQUAL "device")
    # A device rule handles one target and reads the unsplit files of the build tree.
    list(FILTER options EXCLUDE REGEX "^(--arch|--unexpected=.*|[^-].*)$")
  endif()

  set(files "")
  set(sources "")
  set(index 0)
  while(index LESS count)
    foreach(field IN ITEMS target destination name built optional)
      get_property(${field} GLOBAL PROPERTY KPACK_HOOK_FILE_${index}_${field})
    endforeach()
    math(EXPR index "${index} + 1")
    if(IS_ABSOLUTE "${destination}")
      message(FATAL_ERROR "${command}(): \"${target}\" is installed to \"${destination}\", an absolute "
        "path. Kernels are named by paths relative to the install prefix.")
    endif()
    cmake_path(SET file NORMALIZE "${destination}/${name}")
    if(mode STREQUAL "device")
      if(NOT EXISTS "${built}")
        if(optional)
          continue()
        endif()
        message(FATAL_ERROR "${command}(): \"${target}\" is not built: there is no ${built}.")
      endif()
    else()
      # Before 3.31 (CMP0177), CMake only removes slashes at the end.
      string(REGEX REPLACE "/+$" "" directory "${destination}")
      _kpack_hook_installed_now("${directory}/${name}" installed_now)
      if(NOT installed_now)
        if(optional)
          continue()
        endif()
        message(FATAL_ERROR "${command}(): ${prefix}/${file} of target \"${target}\" has not been "
          "installed before the rule that splits it. Call kpack_split_installed() in the directory "
          "that installs the target and after the command that does, with the same DESTINATION and "
          "COMPONENT.")
      endif()
      _kpack_hook_check_copy("${prefix}/${file}" "${target}" "${built}")
    endif()
    # List elements keep their semicolons only if escaped.
    string(REPLACE ";" "\\;" file "${file}")
    string(REPLACE ";" "\\;" built "${built}")
    list(APPEND files "${file}")
    list(APPEND sources --source "${built}")
  endwhile()
  if(files STREQUAL "")
    return()
  endif()
  if(NOT EXISTS "${helper}")
    message(FATAL_ERROR "${command}(): the helper ${helper} was removed after the project was configured. "
      "The installed files are not split. Configure again with Kpack_EXECUTABLE.")
  endif()

  set(only "")
  set(for "")
  if(mode STREQUAL "device")
    set(for " for ${device_target}")
    set(only --only device --arch "${device_target}" ${sources})
    # A component's staging directory may not exist yet.
    file(MAKE_DIRECTORY "${prefix}")
  elseif(mode STREQUAL "host")
    set(only --only host)
  endif()
  foreach(file IN LISTS files)
    message(STATUS "Splitting: ${prefix}/${file}${for}")
  endforeach()
  execute_process(COMMAND "${helper}" install --prefix "${prefix}" --module "${module}"
    --component "${component}" --kpack-dir "${kpack_destination}" ${only} ${options} -- ${files}
    RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    list(JOIN files ", " words)
    message(FATAL_ERROR "${command}(): kpack could not split ${words} (exit code ${result}, its message "
      "is above). The install is not complete.")
  endif()

  _kpack_hook_list_files()
  set(CMAKE_INSTALL_MANIFEST_FILES "${CMAKE_INSTALL_MANIFEST_FILES}" PARENT_SCOPE)
endfunction()

# Checks whether CMake installed <path>, relative to the prefix, in this run. A file of an earlier
# run is already split, and a later rule would overwrite it with the fat binary.
function(_kpack_hook_installed_now path output)
  get_filename_component(prefix "${CMAKE_INSTALL_PREFIX}/" ABSOLUTE)
  cmake_path(SET wanted NORMALIZE "${prefix}/${path}")
  # Compare as text first, since a path may contain semicolons.
  foreach(form IN ITEMS "${prefix}/${path}" "${wanted}")
    string(FIND ";${CMAKE_INSTALL_MANIFEST_FILES};" ";${form};" position)
    if(NOT position EQUAL -1)
      break()
    endif()
  endforeach()
  if(position EQUAL -1)
    foreach(entry IN LISTS CMAKE_INSTALL_MANIFEST_FILES)
      cmake_path(NORMAL_PATH entry)
      if(entry STREQUAL wanted)
        set(position 0)
        break()
      endif()
    endforeach()
  endif()
  if(position EQUAL -1)
    set(${output} FALSE PARENT_SCOPE)
  else()
    set(${output} TRUE PARENT_SCOPE)
  endif()
endfunction()

# Fails if the installed file is a link to the built one.
function(_kpack_hook_check_copy installed target built)
  set(same FALSE)
  if(EXISTS "${built}" AND EXISTS "${installed}")
    file(REAL_PATH "${installed}" installed_real)
    file(REAL_PATH "${built}" built_real)
    if(installed_real STREQUAL built_real)
      set(same TRUE)
    endif()
  endif()
  if(same OR IS_SYMLINK "${installed}")
    set(mode "")
    if(NOT "$ENV{CMAKE_INSTALL_MODE}" STREQUAL "")
      set(mode " CMAKE_INSTALL_MODE is $ENV{CMAKE_INSTALL_MODE}: unset it, or set it to COPY.")
    endif()
    message(FATAL_ERROR "kpack: ${installed} is not a copy of target \"${target}\" but a link to another "
      "file; splitting it would rewrite the build tree.${mode}")
  endif()
endfunction()

# Adds the module's archives and manifest to the list of installed files, without DESTDIR, as
# file(INSTALL) does. Reads and sets variables of _kpack_hook_run().
macro(_kpack_hook_list_files)
  set(stem "${module}_${component}")
  set(directory "${prefix}/${kpack_destination}")
  string(REGEX REPLACE "([[*?])" "[\\1]" pattern "${directory}/${stem}")
  file(GLOB names LIST_DIRECTORIES FALSE RELATIVE "${directory}"
    "${pattern}_*.kpack" "${pattern}.kpm")
  string(LENGTH "${stem}" stem_length)
  foreach(name IN LISTS names)
    string(SUBSTRING "${name}" ${stem_length} -1 rest)
    # AMD's GPU names contain no underscore, so a further one belongs to another component's name.
    if(rest STREQUAL ".kpm" OR rest MATCHES "^_[^_]+\\.kpack$")
      get_filename_component(path "${CMAKE_INSTALL_PREFIX}/${kpack_destination}/${name}" ABSOLUTE)
      # Compare as text, since a path may contain semicolons.
      string(FIND ";${CMAKE_INSTALL_MANIFEST_FILES};" ";${path};" position)
      if(position EQUAL -1)
        list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${path}")
      endif()
    endif()
  endforeach()
endmacro()

cmake_policy(POP)
