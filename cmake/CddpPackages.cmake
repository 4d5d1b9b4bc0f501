# SPDX-License-Identifier: Apache-2.0
# Packages: `cpack --config build/release/CPackConfig.cmake` makes four .deb files and one .tar.gz of everything.
#
#   libcddp0      the shared libraries and the backends
#   libcddp-dev   headers, static libraries, pkg-config and CMake files, examples
#   cddp-verify   the verifier, its catalogue, its manual page and completions
#   cddp-doc      the documents
#
# Included last, when every install() has been said.

set(CPACK_PACKAGE_NAME cddp)
set(CPACK_PACKAGE_VENDOR "the cddp authors")
set(CPACK_PACKAGE_CONTACT "The cddp authors <cddp@localhost.localdomain>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_COMPONENTS_ALL runtime dev tools doc)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_ARCHIVE_COMPONENT_INSTALL OFF)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Backends are opened on demand: the library works without the transports of those that are not installed.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_BINARY_DIR}/${CMAKE_INSTALL_LIBDIR})
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libcddp0)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "DistributedDataParallel for C programs: shared libraries and backends.
Data-parallel training on several ranks, with the buckets, hooks and
guarantees of PyTorch's DistributedDataParallel, over Gloo, Open MPI or NCCL.")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${CMAKE_BINARY_DIR}/packaging/triggers)
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libcddp-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libcddp0 (= ${PROJECT_VERSION}-1), libxxhash-dev, libsqlite3-dev")
set(CPACK_COMPONENT_DEV_DESCRIPTION "DistributedDataParallel for C programs: headers and static libraries.
Everything that a program needs to be built against libcddp, and examples
to begin with.")
set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME cddp-verify)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION devel)
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "libcddp0 (= ${PROJECT_VERSION}-1)")
set(CPACK_COMPONENT_TOOLS_DESCRIPTION "verifier of data-parallel training.
Runs scenarios of distributed training, or takes the record of a program,
and judges whether many ranks did what one would have done. Names the
culprit, explores schedules, replays and shrinks what fails.")
set(CPACK_DEBIAN_DOC_PACKAGE_NAME cddp-doc)
set(CPACK_DEBIAN_DOC_PACKAGE_SECTION doc)
set(CPACK_DEBIAN_DOC_PACKAGE_ARCHITECTURE all)
set(CPACK_COMPONENT_DOC_DESCRIPTION "DistributedDataParallel for C programs: documents.
Semantics, invariants, formats and how-tos of libcddp and cddp-verify.")

# What Debian asks of every package: who may copy it, and what changed.
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/packaging)
find_program(GZIP_PROGRAM gzip)
if(GZIP_PROGRAM)
  configure_file(${PROJECT_SOURCE_DIR}/packaging/changelog.in ${CMAKE_BINARY_DIR}/packaging/changelog.Debian @ONLY)
  execute_process(COMMAND ${GZIP_PROGRAM} -9nkf ${CMAKE_BINARY_DIR}/packaging/changelog.Debian)
  execute_process(COMMAND ${GZIP_PROGRAM} -9nc ${PROJECT_SOURCE_DIR}/CHANGELOG.md OUTPUT_FILE ${CMAKE_BINARY_DIR}/packaging/changelog.gz)
endif()
file(WRITE ${CMAKE_BINARY_DIR}/packaging/triggers "activate-noawait ldconfig\n")
foreach(pair runtime:libcddp0 dev:libcddp-dev tools:cddp-verify doc:cddp-doc)
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 component)
  list(GET pair 1 package)
  install(FILES ${PROJECT_SOURCE_DIR}/packaging/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${component})
  install(FILES ${PROJECT_SOURCE_DIR}/packaging/lintian-overrides/${package} DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides COMPONENT ${component})
  if(GZIP_PROGRAM)
    install(FILES ${CMAKE_BINARY_DIR}/packaging/changelog.Debian.gz ${CMAKE_BINARY_DIR}/packaging/changelog.gz
      DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${component})
  endif()
endforeach()
include(CddpSbom)
include(CddpDocs)
include(CPack)

# `cmake --build build/release --target uninstall` removes what the last `cmake --install` wrote.
add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -DMANIFEST=${CMAKE_BINARY_DIR}/install_manifest.txt
  -P ${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake VERBATIM)
