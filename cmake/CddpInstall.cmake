# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where, and how other projects find it: cddp-config.cmake and cddp.pc.

include(CMakePackageConfigHelpers)

function(cddp_install)
  get_property(libraries GLOBAL PROPERTY CDDP_LIBRARIES)
  list(REMOVE_DUPLICATES libraries)
  set(targets ${libraries})
  if(TARGET cddp_shared)
    list(APPEND targets cddp_shared)
  endif()
  set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cddp)
  install(TARGETS ${targets} EXPORT cddp-targets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/cddp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
    FILES_MATCHING PATTERN "*.h" PATTERN "*.def")
  install(EXPORT cddp-targets NAMESPACE cddp:: DESTINATION ${config_dir} COMPONENT dev)

  set(CDDP_BACKEND_DIR ${CMAKE_INSTALL_LIBDIR}/cddp)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/cddp-config.cmake.in
    ${CMAKE_BINARY_DIR}/cddp-config.cmake INSTALL_DESTINATION ${config_dir} PATH_VARS CDDP_BACKEND_DIR)
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/cddp-config-version.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/cddp-config.cmake ${CMAKE_BINARY_DIR}/cddp-config-version.cmake
    DESTINATION ${config_dir} COMPONENT dev)

  get_property(links GLOBAL PROPERTY CDDP_LINKS_OF_cddp)
  set(CDDP_PC_LIBS -lm)
  list(REMOVE_DUPLICATES links)
  foreach(link IN LISTS links)
    if(IS_ABSOLUTE ${link})
      list(PREPEND CDDP_PC_LIBS ${link})
    else()
      list(PREPEND CDDP_PC_LIBS -l${link})
    endif()
  endforeach()
  string(REPLACE ";" " " CDDP_PC_LIBS "${CDDP_PC_LIBS}")
  # From where the files are: a tree that was moved is found, however deep its folders lie.
  file(RELATIVE_PATH CDDP_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
  file(RELATIVE_PATH CDDP_PC_INCLUDEDIR ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/cddp.pc.in ${CMAKE_BINARY_DIR}/cddp.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/cddp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
  if(CDDP_VERIFIER)
    configure_file(${PROJECT_SOURCE_DIR}/cmake/cddp_store.pc.in ${CMAKE_BINARY_DIR}/cddp_store.pc @ONLY)
    install(FILES ${CMAKE_BINARY_DIR}/cddp_store.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
  endif()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DATADIR}/cddp USE_SOURCE_PERMISSIONS COMPONENT dev
    FILES_MATCHING PATTERN "*.c" PATTERN "*.h" PATTERN "*.diff" PATTERN "*.patch" PATTERN "*.sh" PATTERN "*.md" PATTERN "CMakeLists.txt")
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc)
  install(PROGRAMS ${PROJECT_SOURCE_DIR}/packaging/ci.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/cddp COMPONENT tools)
  # Examples to start from.
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/scenarios DESTINATION ${CMAKE_INSTALL_DATADIR}/cddp COMPONENT tools
    FILES_MATCHING PATTERN "*.toml" PATTERN reader EXCLUDE)
endfunction()
