# SPDX-License-Identifier: Apache-2.0
# cddp_embed_text(out symbol file): a C source with the bytes of a file as `const char symbol[]`, terminated, so that the
# program needs no installed file for it. The path of the source is appended to the list `out`. Editing the file reruns
# CMake.
function(cddp_embed_text out symbol file)
  get_filename_component(path ${file} ABSOLUTE BASE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
  file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${path})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  file(READ ${path} bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(REGEX REPLACE "(0x[89a-f][0-9a-f])" "(char)\\1" bytes "${bytes}")
  string(REPLACE "0x0a," "0x0a,\n" bytes "${bytes}")
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.c)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT
    "/* Made from @name@. */\nextern const char @symbol@[];\nconst char @symbol@[] = {\n@bytes@0};\n")
  set(${out} ${${out}} ${source} PARENT_SCOPE)
endfunction()
