# CPackConfig.cmake includes this at its end, when all variables of the project are known. Keeps every
# variable that the project has set.

cmake_policy(PUSH)
cmake_policy(VERSION 3.22...3.31)

# In place of the project's maintainer scripts: files without effect.
set(_kpack_no_triggers "${CMAKE_CURRENT_LIST_DIR}/device-package/triggers")
set(_kpack_script_without_effect "${CMAKE_CURRENT_LIST_DIR}/device-package/scriptlet")

# Without these, the DEB, RPM and archive generators put all components into one package.
foreach(_kpack_generator DEB RPM ARCHIVE)
  if(NOT DEFINED CPACK_${_kpack_generator}_COMPONENT_INSTALL)
    set(CPACK_${_kpack_generator}_COMPONENT_INSTALL ON)
  endif()
endforeach()
unset(_kpack_generator)

macro(_kpack_cpack_default variable value)
  if(NOT DEFINED ${variable})
    set(${variable} "${value}" PARENT_SCOPE)
    set(${variable} "${value}")
  endif()
endmacro()

# Appends to a comma-separated list. If a component has no list of its own, starts with the one for
# all packages, which it overrides.
macro(_kpack_cpack_append variable common value)
  set(_kpack_list "${${common}}")
  if(DEFINED ${variable})
    set(_kpack_list "${${variable}}")
  endif()
  if(NOT _kpack_list STREQUAL "")
    string(APPEND _kpack_list ", ")
  endif()
  string(APPEND _kpack_list "${value}")
  set(${variable} "${_kpack_list}" PARENT_SCOPE)
endmacro()

# Sets <output> to the unit of packaging: the component's group if it has one, else the component.
function(_kpack_cpack_unit component output)
  string(TOUPPER "${component}" upper)
  if(CPACK_COMPONENT_${upper}_GROUP
     AND NOT CPACK_COMPONENTS_GROUPING MATCHES "^(IGNORE|ALL_COMPONENTS_IN_ONE)$")
    set(component "${CPACK_COMPONENT_${upper}_GROUP}")
  endif()
  set(${output} "${component}" PARENT_SCOPE)
endfunction()

# Sets <output> to the first of the variables ARGN that is not empty.
function(_kpack_cpack_first output)
  set(${output} "" PARENT_SCOPE)
  foreach(variable IN LISTS ARGN)
    if(NOT "${${variable}}" STREQUAL "")
      set(${output} "${${variable}}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# The name and version of a Debian package, as CPack makes them.
function(_kpack_cpack_deb_package unit name_output version_output)
  string(TOUPPER "${unit}" upper)
  _kpack_cpack_first(name CPACK_DEBIAN_${upper}_PACKAGE_NAME)
  if(name STREQUAL "")
    _kpack_cpack_first(base CPACK_DEBIAN_PACKAGE_NAME CPACK_PACKAGE_NAME)
    set(name "${base}-${unit}")
  endif()
  string(TOLOWER "${name}" name)
  _kpack_cpack_first(version CPACK_DEBIAN_PACKAGE_VERSION CPACK_PACKAGE_VERSION)
  if(CPACK_DEBIAN_PACKAGE_RELEASE)
    string(APPEND version "-${CPACK_DEBIAN_PACKAGE_RELEASE}")
  endif()
  if(CPACK_DEBIAN_PACKAGE_EPOCH)
    string(PREPEND version "${CPACK_DEBIAN_PACKAGE_EPOCH}:")
  endif()
  set(${name_output} "${name}" PARENT_SCOPE)
  set(${version_output} "${version}" PARENT_SCOPE)
endfunction()

# The name and version of an RPM package.
function(_kpack_cpack_rpm_package unit name_output version_output)
  string(TOUPPER "${unit}" upper)
  string(TOUPPER "${CPACK_RPM_MAIN_COMPONENT}" main)
  string(TOLOWER "${CPACK_PACKAGE_NAME}" base)
  _kpack_cpack_first(base CPACK_RPM_PACKAGE_NAME base)
  if(upper STREQUAL main)
    set(name "${base}")
  else()
    set(name "${base}-${unit}")
    _kpack_cpack_first(name CPACK_RPM_${unit}_PACKAGE_NAME CPACK_RPM_${upper}_PACKAGE_NAME name)
  endif()
  _kpack_cpack_first(version CPACK_RPM_PACKAGE_VERSION CPACK_PACKAGE_VERSION)
  string(REPLACE "-" "_" version "${version}")
  set(release 1)
  _kpack_cpack_first(release CPACK_RPM_PACKAGE_RELEASE release)
  if(CPACK_RPM_PACKAGE_RELEASE_DIST)
    string(APPEND release "%{?dist}")
  endif()
  string(APPEND version "-${release}")
  if(CPACK_RPM_PACKAGE_EPOCH)
    string(PREPEND version "${CPACK_RPM_PACKAGE_EPOCH}:")
  endif()
  set(${name_output} "${name}" PARENT_SCOPE)
  set(${version_output} "${version}" PARENT_SCOPE)
endfunction()

# The Debian package of a device component. Reads variables of _kpack_cpack_component().
#
# The code belongs to one build, so it needs exactly this version. CPack adds the same dependency
# from CPACK_COMPONENT_<component>_DEPENDS if the project asked for that.
macro(_kpack_cpack_deb_device)
  _kpack_cpack_deb_package("${host_unit}" package version)
  if(NOT "${CPACK_DEBIAN_${host_upper}_PACKAGE_NAME}" STREQUAL "")
    _kpack_cpack_default(CPACK_DEBIAN_${upper}_PACKAGE_NAME "${package}-${suffix}")
  endif()
  if(NOT CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS)
    set(depends "${package} (= ${version})")
    if(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS)
      string(APPEND depends ", ${CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS}")
    endif()
    set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${depends}" PARENT_SCOPE)
  endif()
  _kpack_cpack_default(CPACK_DEBIAN_${upper}_PACKAGE_SHLIBDEPS OFF)
  if(NOT DEFINED CPACK_DEBIAN_${upper}_DESCRIPTION)
    set(CPACK_DEBIAN_${upper}_DESCRIPTION
      "${summary}\n${CPACK_COMPONENT_${upper}_DESCRIPTION}" PARENT_SCOPE)
    set(KPACK_DEVICE_PACKAGE_${upper} TRUE PARENT_SCOPE)
  endif()
  if(NOT "${CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA}" STREQUAL "")
    _kpack_cpack_default(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA "${_kpack_no_triggers}")
  endif()
  _kpack_cpack_deb_package("${device}" device_package version)
  set(other "${device_package} (= ${version})")
  if(weak STREQUAL "recommend")
    # A package that says which GPUs the machine has provides kpack-without-<processor> for all others.
    string(APPEND other " | kpack-without-${processor}")
    _kpack_cpack_append(CPACK_DEBIAN_${host_upper}_PACKAGE_RECOMMENDS
      CPACK_DEBIAN_PACKAGE_RECOMMENDS "${other}")
  elseif(weak STREQUAL "suggest")
    _kpack_cpack_append(CPACK_DEBIAN_${host_upper}_PACKAGE_SUGGESTS
      CPACK_DEBIAN_PACKAGE_SUGGESTS "${other}")
  endif()
endmacro()

# The same for the RPM package of a device component.
macro(_kpack_cpack_rpm_device)
  _kpack_cpack_rpm_package("${host_unit}" package version)
  if(NOT "${CPACK_RPM_${host_upper}_PACKAGE_NAME}" STREQUAL "")
    _kpack_cpack_default(CPACK_RPM_${upper}_PACKAGE_NAME "${package}-${suffix}")
  endif()
  set(requires "${package} = ${version}")
  if(CPACK_RPM_${upper}_PACKAGE_REQUIRES)
    string(APPEND requires ", ${CPACK_RPM_${upper}_PACKAGE_REQUIRES}")
  endif()
  set(CPACK_RPM_${upper}_PACKAGE_REQUIRES "${requires}" PARENT_SCOPE)
  _kpack_cpack_default(CPACK_RPM_${upper}_PACKAGE_SUMMARY "${summary}")
  foreach(script PRE_INSTALL POST_INSTALL PRE_UNINSTALL POST_UNINSTALL PRE_TRANS POST_TRANS)
    if(NOT "${CPACK_RPM_${script}_SCRIPT_FILE}" STREQUAL "")
      _kpack_cpack_default(CPACK_RPM_${upper}_${script}_SCRIPT_FILE "${_kpack_script_without_effect}")
    endif()
  endforeach()
  # CPack has no variable for Supplements, and ignores the one for Suggests with current rpm. But
  # it copies Provides to the spec file verbatim, and a package provides itself anyway.
  set(host_package "${package}")
  _kpack_cpack_rpm_package("${device}" device_package version)
  if(weak STREQUAL "recommend")
    # Installed with the host package on a machine with this GPU, and on one whose GPU no package names.
    set(provides "${device_package} = ${version}")
    _kpack_cpack_first(provides CPACK_RPM_${upper}_PACKAGE_PROVIDES CPACK_RPM_PACKAGE_PROVIDES provides)
    set(CPACK_RPM_${upper}_PACKAGE_PROVIDES "${provides}
Supplements: (${host_package} and kpack-gpu(${processor}))
Supplements: (${host_package} unless kpack-gpu-named)" PARENT_SCOPE)
  elseif(weak STREQUAL "suggest")
    set(provides "${host_package} = ${version}")
    _kpack_cpack_first(provides
      CPACK_RPM_${host_upper}_PACKAGE_PROVIDES CPACK_RPM_PACKAGE_PROVIDES provides)
    set(CPACK_RPM_${host_upper}_PACKAGE_PROVIDES
      "${provides}\nSuggests: ${device_package} = ${version}" PARENT_SCOPE)
  endif()
endmacro()

# Describes the device component <device> of the component <host>. <weak> is the host package's
# dependency on it: recommend, suggest or none.
function(_kpack_cpack_component device host target suffix weak)
  if(CPACK_COMPONENTS_ALL AND NOT device IN_LIST CPACK_COMPONENTS_ALL)
    message(WARNING "CPACK_COMPONENTS_ALL lacks \"${device}\": no package will have the device code "
      "of \"${host}\" for ${target}. Call include(CPack) after kpack_install(), or add what "
      "kpack_device_components() gives.")
  endif()
  string(TOUPPER "${device}" upper)
  _kpack_cpack_default(CPACK_COMPONENT_${upper}_DISPLAY_NAME "${host} device code for ${target}")
  _kpack_cpack_default(CPACK_COMPONENT_${upper}_DESCRIPTION
    "GPU code of component ${host} for ${target}.")
  if(NOT host IN_LIST CPACK_COMPONENT_${upper}_DEPENDS)
    list(APPEND CPACK_COMPONENT_${upper}_DEPENDS "${host}")
    set(CPACK_COMPONENT_${upper}_DEPENDS "${CPACK_COMPONENT_${upper}_DEPENDS}" PARENT_SCOPE)
  endif()

  _kpack_cpack_unit("${host}" host_unit)
  _kpack_cpack_unit("${device}" device_unit)
  if(NOT device_unit STREQUAL device)
    return() # The project has put it into a group, and describes that package itself.
  endif()
  string(TOUPPER "${host_unit}" host_upper)
  set(subject "${CPACK_PACKAGE_NAME} ${host}")
  if(NOT "${CPACK_PACKAGE_DESCRIPTION_SUMMARY}" STREQUAL "${CPACK_DEFAULT_PACKAGE_DESCRIPTION_SUMMARY}")
    _kpack_cpack_first(subject CPACK_PACKAGE_DESCRIPTION_SUMMARY subject)
  endif()
  set(summary "${subject} - device code for ${target}")

  string(REGEX REPLACE ":.*" "" processor "${target}")
  _kpack_cpack_deb_device()
  _kpack_cpack_rpm_device()
endfunction()

# Tells the install rules of the component <host> how users install the package of its device component
# <device>, if the names of all these packages differ in the target ID alone. Runs once per generator.
function(_kpack_cpack_hint device host suffix)
  set(variable "KPACK_INSTALL_HINT_${host}")
  unset(ENV{${variable}})
  _kpack_cpack_unit("${device}" unit)
  if(NOT unit STREQUAL device OR NOT CPACK_${CPACK_GENERATOR}_COMPONENT_INSTALL
     OR CPACK_COMPONENTS_GROUPING STREQUAL "ALL_COMPONENTS_IN_ONE")
    return()
  elseif(CPACK_GENERATOR STREQUAL "DEB")
    set(hint "apt install")
    _kpack_cpack_deb_package("${device}" package version)
  elseif(CPACK_GENERATOR STREQUAL "RPM")
    set(hint "dnf install")
    if(EXISTS "/etc/zypp")
      set(hint "zypper install")
    endif()
    _kpack_cpack_rpm_package("${device}" package version)
  else()
    return()
  endif()
  string(REPLACE "-${suffix}" "-@GFXARCH@" package "${package}")
  set_property(GLOBAL APPEND PROPERTY "${variable} ${CPACK_GENERATOR}" "${package}")
  get_property(packages GLOBAL PROPERTY "${variable} ${CPACK_GENERATOR}")
  list(REMOVE_DUPLICATES packages)
  if(packages MATCHES "^[^;]*-@GFXARCH@$")
    set(ENV{${variable}} "${hint} ${packages}")
  endif()
endfunction()

# CPack starts the description of every Debian package with the project's summary. If packages have
# a summary of their own, give each the description that CPack would make, and keep CPack from
# adding the summary by making it the default one.
function(_kpack_cpack_deb_summaries)
  set(summary "${CPACK_PACKAGE_DESCRIPTION_SUMMARY}")
  if(summary STREQUAL "" OR summary STREQUAL "${CPACK_DEFAULT_PACKAGE_DESCRIPTION_SUMMARY}"
     OR NOT CPACK_DEB_COMPONENT_INSTALL OR CPACK_COMPONENTS_GROUPING STREQUAL "ALL_COMPONENTS_IN_ONE")
    return()
  endif()
  set(known "")
  set(common "")
  if(CPACK_PACKAGE_DESCRIPTION_FILE
     AND NOT CPACK_PACKAGE_DESCRIPTION_FILE STREQUAL "${CPACK_DEFAULT_PACKAGE_DESCRIPTION_FILE}")
    file(READ "${CPACK_PACKAGE_DESCRIPTION_FILE}" common)
  endif()
  foreach(component IN LISTS CPACK_COMPONENTS_ALL)
    _kpack_cpack_unit("${component}" unit)
    string(TOUPPER "${unit}" upper)
    if(unit IN_LIST known OR KPACK_DEVICE_PACKAGE_${upper})
      continue()
    endif()
    list(APPEND known "${unit}")
    _kpack_cpack_first(description
      CPACK_DEBIAN_${upper}_DESCRIPTION CPACK_COMPONENT_${upper}_DESCRIPTION common)
    if(NOT description STREQUAL "")
      set(CPACK_DEBIAN_${upper}_DESCRIPTION "${summary}\n${description}" PARENT_SCOPE)
    endif()
  endforeach()
  set(CPACK_DEFAULT_PACKAGE_DESCRIPTION_SUMMARY "${summary}" PARENT_SCOPE)
endfunction()

cmake_policy(POP)
