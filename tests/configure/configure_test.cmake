# SPDX-License-Identifier: Apache-2.0
# Configures the tree as a user might and reads what it says: how backends are switched, and that nothing but the
# verifier's needs is looked for without the tests. Called with SOURCE, WORK, C, CXX.

# attempt(<name> <expected code: OK or ERROR> "<regex the output must match>" <cmake arguments…>)
function(attempt name expected pattern)
  set(build ${WORK}/${name})
  file(REMOVE_RECURSE ${build})
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${build} -DBUILD_TESTING=OFF -DCMAKE_C_COMPILER=${C}
      -DCMAKE_CXX_COMPILER=${CXX} ${ARGN}
    RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(code EQUAL 0)
    set(result OK)
  else()
    set(result ERROR)
  endif()
  string(REGEX REPLACE "[ \n]+" " " words "${output}") # messages are wrapped
  if(NOT result STREQUAL expected OR NOT words MATCHES "${pattern}")
    message(FATAL_ERROR "${name}: expected ${expected} and \"${pattern}\", got ${result}:\n${output}")
  endif()
  message(STATUS "${name}: as expected")
endfunction()

attempt(off OK "backend gloo: off, switched off \\(CDDP_BACKEND_GLOO=OFF\\)" -DCDDP_BACKEND_GLOO=OFF
  -DCMAKE_INSTALL_LIBDIR=lib/some-linux-gnu -DCMAKE_INSTALL_INCLUDEDIR=/opt/headers -DCMAKE_INSTALL_PREFIX=/opt/cddp)
# Wherever libraries and headers are to lie, pkg-config finds them from its own file.
file(READ ${WORK}/off/cddp.pc package)
if(NOT package MATCHES "prefix=\\\${pcfiledir}/\\.\\./\\.\\./\\.\\./?\n.*includedir=\\\${prefix}/\\.\\./headers\n")
  message(FATAL_ERROR "cddp.pc of a deep lib folder, and of headers outside of the prefix:\n${package}")
endif()
file(READ ${WORK}/off/backends/table/backend_table.c table)
if(NOT table MATCHES "\"gloo\", \"[^\"]+\", \"\", \"switched off")
  message(FATAL_ERROR "the table of backends does not give the reason:\n${table}")
endif()
attempt(absent OK "backend gloo: off, Gloo was not found \\(Debian package libgloo-dev\\)" -DCMAKE_DISABLE_FIND_PACKAGE_Gloo=ON)
attempt(required ERROR "backend gloo was asked for, but Gloo was not found"
  -DCMAKE_DISABLE_FIND_PACKAGE_Gloo=ON -DCDDP_BACKEND_GLOO=ON)
attempt(nonsense ERROR "CDDP_BACKEND_GLOO is 'MAYBE'; it must be AUTO, ON or OFF" -DCDDP_BACKEND_GLOO=MAYBE)
# A folder may be called almost anything; cmake/packages.sh knows what CMake itself refuses.
set(source ${SOURCE})
set(work ${WORK})
set(WORK "${work}/ü % it's")
set(SOURCE "${WORK}/tree")
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
file(CREATE_LINK ${source} ${SOURCE} SYMBOLIC)
attempt(odd OK "backend nccl: off, .*Build files have been written" -DBUILD_TESTING=ON)
set(SOURCE ${source})
set(WORK ${work})
attempt(default OK "backend self: built in" -DCDDP_BACKEND_GLOO=OFF -DCDDP_BACKEND_MPI_OPENMPI=OFF -DCDDP_BACKEND_MPI_MPICH=OFF)
file(STRINGS ${WORK}/default/CMakeCache.txt type REGEX "^CMAKE_BUILD_TYPE")
if(NOT type MATCHES "=Release$")
  message(FATAL_ERROR "a plain configuration is ${type}, not a release build")
endif()

# A user who wants the library alone: nothing of the verifier is looked for, and nothing of it is built.
attempt(library OK "cddp-verify: off, SQLite 3.37 was not found \\(Debian package libsqlite3-dev\\)"
  -DCMAKE_DISABLE_FIND_PACKAGE_SQLite3=ON)
attempt(verifier_required ERROR "SQLite3" -DCMAKE_DISABLE_FIND_PACKAGE_SQLite3=ON -DCDDP_VERIFIER=ON)
attempt(verifier_nonsense ERROR "CDDP_VERIFIER is 'MAYBE'; it must be AUTO, ON or OFF" -DCDDP_VERIFIER=MAYBE)
foreach(build IN ITEMS library default)
  execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/${build} --target cddp -- -n
    OUTPUT_VARIABLE steps ERROR_QUIET RESULT_VARIABLE ignored) # make misses the objects that it did not make
  # What is compiled, from which folder.
  string(REGEX MATCHALL "-c [^\n]*/[^ /\n]+\\.(c|cc|cu)" compiled "${steps}")
  list(LENGTH compiled count)
  if(count LESS 100)
    message(FATAL_ERROR "target cddp of ${build} compiles only ${count} files")
  endif()
  foreach(file IN LISTS compiled)
    string(REPLACE "-c ${SOURCE}/" "" file "${file}")
    if(file MATCHES "^(cli|verify|db|scenarios|tests|bench|examples)/" OR file MATCHES "\\.(cc|cu)$")
      message(FATAL_ERROR "target cddp of ${build} drags in ${file}")
    endif()
  endforeach()
  message(STATUS "target cddp of ${build} compiles ${count} files of the library")
endforeach()
