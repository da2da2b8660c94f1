# Read by cpack at the end of CPackConfig.cmake, when all of the project's variables are known.
# Whatever the project has set itself stays as it is.

cmake_policy(PUSH)
cmake_policy(VERSION 3.22...3.31)

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

# Describes the device component <device> that goes with the component <host>.
function(_kpack_cpack_component device host target suffix)
  if(CPACK_COMPONENTS_ALL AND NOT device IN_LIST CPACK_COMPONENTS_ALL)
    message(WARNING "CPACK_COMPONENTS_ALL lacks \"${device}\": no package will have the device code "
      "of \"${host}\" for ${target}. Call include(CPack) after kpack_install(), or add what "
      "kpack_device_components() gives.")
  endif()
  string(TOUPPER "${device}" device_upper)
  string(TOUPPER "${host}" host_upper)

  _kpack_cpack_default(CPACK_COMPONENT_${device_upper}_DISPLAY_NAME "${host} device code for ${target}")
  _kpack_cpack_default(CPACK_COMPONENT_${device_upper}_DESCRIPTION
    "GPU code of component ${host} for ${target}.")
  if(NOT host IN_LIST CPACK_COMPONENT_${device_upper}_DEPENDS)
    list(APPEND CPACK_COMPONENT_${device_upper}_DEPENDS "${host}")
    set(CPACK_COMPONENT_${device_upper}_DEPENDS
      "${CPACK_COMPONENT_${device_upper}_DEPENDS}" PARENT_SCOPE)
  endif()

  # The name of the host's package, as CPack's DEB generator makes it.
  set(base "${CPACK_DEBIAN_PACKAGE_NAME}")
  if(base STREQUAL "")
    set(base "${CPACK_PACKAGE_NAME}")
  endif()
  set(unit "${host}")
  if(CPACK_COMPONENT_${host_upper}_GROUP
     AND NOT CPACK_COMPONENTS_GROUPING MATCHES "^(IGNORE|ALL_COMPONENTS_IN_ONE)$")
    set(unit "${CPACK_COMPONENT_${host_upper}_GROUP}")
  endif()
  string(TOUPPER "${unit}" unit_upper)
  set(package "${CPACK_DEBIAN_${unit_upper}_PACKAGE_NAME}")
  if(package STREQUAL "")
    set(package "${base}-${unit}")
  else()
    _kpack_cpack_default(CPACK_DEBIAN_${device_upper}_PACKAGE_NAME "${package}-${suffix}")
  endif()
  string(TOLOWER "${package}" package)

  # Its version, likewise.
  set(version "${CPACK_DEBIAN_PACKAGE_VERSION}")
  if(version STREQUAL "")
    set(version "${CPACK_PACKAGE_VERSION}")
  endif()
  if(CPACK_DEBIAN_PACKAGE_RELEASE)
    string(APPEND version "-${CPACK_DEBIAN_PACKAGE_RELEASE}")
  endif()
  if(CPACK_DEBIAN_PACKAGE_EPOCH)
    string(PREPEND version "${CPACK_DEBIAN_PACKAGE_EPOCH}:")
  endif()

  # Manifest and kernel names are those of one build. CPack adds the same dependency from
  # CPACK_COMPONENT_<component>_DEPENDS where the project asked for that.
  if(NOT CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS)
    set(depends "${package} (= ${version})")
    if(CPACK_DEBIAN_${device_upper}_PACKAGE_DEPENDS)
      string(APPEND depends ", ${CPACK_DEBIAN_${device_upper}_PACKAGE_DEPENDS}")
    endif()
    set(CPACK_DEBIAN_${device_upper}_PACKAGE_DEPENDS "${depends}" PARENT_SCOPE)
  endif()
  # Scripts such as ldconfig triggers are the host package's.
  _kpack_cpack_default(CPACK_DEBIAN_${device_upper}_PACKAGE_SHLIBDEPS OFF)
endfunction()

cmake_policy(POP)
