# SPDX-License-Identifier: Apache-2.0
# `cmake --build build/release --target docs` makes the documents and the interface into pages that open from disk, in
# build/release/docs/site. What was built is installed, and packed, beside the documents.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(Python3_Interpreter_FOUND)
  add_custom_target(docs COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/docs/site/site.py ${PROJECT_SOURCE_DIR} ${CMAKE_BINARY_DIR}/docs
    VERBATIM USES_TERMINAL)
  install(DIRECTORY ${CMAKE_BINARY_DIR}/docs/site DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc OPTIONAL)
endif()
