# SPDX-License-Identifier: Apache-2.0
# Installs the build into an empty folder and uses it as a stranger would: through find_package and through
# pkg-config, from C and from C++. Called with BUILD, CONSUMER, SCENARIOS, WORK, LIBDIR, DATADIR, C, CXX.

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    string(JOIN " " command ${ARGN})
    message(FATAL_ERROR "${command}\nended with ${code}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect_greeting program)
  run(${program})
  if(NOT output MATCHES "^cddp [0-9.]+ averaged 1 2 3\n$")
    message(FATAL_ERROR "${program} printed: ${output}")
  endif()
  message(STATUS "${program}: ${output}")
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
# Relocatable: the installed tree is moved before it is used.
file(RENAME ${WORK}/prefix ${WORK}/moved)
set(prefix ${WORK}/moved)

foreach(language C CXX)
  set(compiler ${${language}})
  if(compiler)
    run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${WORK}/${language} -DLANGUAGE=${language} -DCMAKE_PREFIX_PATH=${prefix}
      -DCMAKE_${language}_COMPILER=${compiler})
    run(${CMAKE_COMMAND} --build ${WORK}/${language})
    expect_greeting(${WORK}/${language}/average)
  endif()
endforeach()

# One call starts ranks, whose backend is found beside the library; and what they do is recorded.
if(EXISTS ${WORK}/C/ranks AND EXISTS ${prefix}/${LIBDIR}/cddp/cddp-gloo.so)
  set(ENV{CDDP_RECORD} ${WORK}/run.db)
  run(${WORK}/C/ranks)
  unset(ENV{CDDP_RECORD})
  if(NOT output STREQUAL "sum 6\n")
    message(FATAL_ERROR "ranks printed: ${output}")
  endif()
  execute_process(COMMAND ${prefix}/bin/cddp-verify check ${WORK}/run.db.0 ${WORK}/run.db.1 ${WORK}/run.db.2
    RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 4 OR NOT output MATCHES "cddp_record_optimizer_step")
    message(FATAL_ERROR "a program that trains nothing: ${code}\n${output}")
  endif()
  message(STATUS "ranks over gloo: started, met, recorded")
endif()

# A host that closes the library while it records.
if(EXISTS ${prefix}/${LIBDIR}/libcddp.so)
  run(${C} -std=c11 -Wall -Wextra -pedantic -Werror ${CONSUMER}/closed.c -I${prefix}/include -o ${WORK}/closed -ldl)
  set(ENV{CDDP_RECORD} ${WORK}/closed.db)
  run(${WORK}/closed ${prefix}/${LIBDIR}/libcddp.so)
  unset(ENV{CDDP_RECORD})
endif()

# A program without a loader for modules says so, where the C library can be linked like that.
execute_process(COMMAND ${C} -static ${CONSUMER}/ranks.c -I${prefix}/include ${prefix}/${LIBDIR}/libcddp.a -ldl -lpthread -lm -o ${WORK}/static
  RESULT_VARIABLE code OUTPUT_QUIET ERROR_QUIET)
if(code EQUAL 0 AND EXISTS ${prefix}/${LIBDIR}/cddp/cddp-gloo.so)
  set(ENV{CDDP_BACKEND_DIR} ${prefix}/${LIBDIR}/cddp)
  execute_process(COMMAND ${WORK}/static RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  unset(ENV{CDDP_BACKEND_DIR})
  if(NOT code EQUAL 1 OR NOT output MATCHES "linked with -static")
    message(FATAL_ERROR "a static program ended with ${code}:\n${output}")
  endif()
endif()

# The programs that users begin with give no warning, even at high warning levels.
set(strict "-DCMAKE_C_FLAGS=-Wall -Wextra -Wpedantic -Wconversion -Werror")

# The plugins to begin with are installed, and built from there.
set(EXAMPLES ${prefix}/${DATADIR}/cddp/examples)

# A backend from outside: loaded by path, judged, and failed for what is wrong with it.
run(${CMAKE_COMMAND} -S ${EXAMPLES}/backend -B ${WORK}/dummy -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_C_COMPILER=${C} ${strict})
run(${CMAKE_COMMAND} --build ${WORK}/dummy)
function(expect_words code words)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE got OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(FIND "${output}" "${words}" at)
  if(NOT got EQUAL code OR at EQUAL -1)
    string(JOIN " " command ${ARGN})
    message(FATAL_ERROR "${command}\nended with ${got}, wanted ${code} and \"${words}\":\n${output}")
  endif()
endfunction()
expect_words(1 "FAILED  allreduce" ${prefix}/bin/cddp-verify backend-conformance dummy -n 2 --plugin ${WORK}/dummy/dummy_backend.so)
expect_words(0 "no     dummy       backend dummy does not implement allgather" ${prefix}/bin/cddp-verify doctor
  --plugin ${WORK}/dummy/dummy_backend.so)
expect_words(3 "does not implement allgather, on all ranks: models are compared with" ${prefix}/bin/cddp-verify ${SCENARIOS}/gan_unused_params.toml --backend dummy
  --plugin ${WORK}/dummy/dummy_backend.so)
# And one that is right, for scenarios too.
set(loopback --plugin ${WORK}/dummy/loopback_backend.so)
expect_words(0 "conforms  backend loopback, 3 ranks" ${prefix}/bin/cddp-verify backend-conformance loopback -n 3 ${loopback})
expect_words(0 "conforms  backend loopback, 2 ranks" ${prefix}/bin/cddp-verify backend-conformance loopback -n 2
  --thorough --counters 4294967290 ${loopback})
expect_words(0 "works  loopback" ${prefix}/bin/cddp-verify doctor ${loopback})
expect_words(0 "verified" ${prefix}/bin/cddp-verify ${SCENARIOS}/gan_unused_params.toml --backend loopback ${loopback})
expect_words(3 "does not implement alltoall, on all ranks" ${prefix}/bin/cddp-verify ${SCENARIOS}/order/alltoall_shares_differ.toml
  --backend loopback ${loopback})
expect_words(2 "unknown backend 'dummy'" ${prefix}/bin/cddp-verify backend-conformance dummy -n 2)

# A hook from outside: keeps every law of its card, and trains a scenario.
run(${CMAKE_COMMAND} -S ${EXAMPLES}/hook -B ${WORK}/hook -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_C_COMPILER=${C} ${strict})
run(${CMAKE_COMMAND} --build ${WORK}/hook)
expect_words(0 "conforms  hook mean" ${prefix}/bin/cddp-verify hook-conformance mean --plugin ${WORK}/hook/mean_hook.so)
expect_words(0 "verified" ${prefix}/bin/cddp-verify ${SCENARIOS}/gan_unused_params.toml --plugin ${WORK}/hook/mean_hook.so
  --set ddp.comm_hook=mean)
expect_words(0 "conforms  hook alternate" ${prefix}/bin/cddp-verify hook-conformance alternate --plugin ${WORK}/hook/alternate_hook.so)
expect_words(0 "verified" ${prefix}/bin/cddp-verify ${SCENARIOS}/hooks/topk.toml --plugin ${WORK}/hook/alternate_hook.so
  --set ddp.comm_hook=alternate)

# The page for new users, command by command.
find_program(BASH NAMES bash)
find_program(PATCH NAMES patch)
if(BASH AND PATCH AND EXISTS ${prefix}/${LIBDIR}/libcddp.so AND EXISTS ${prefix}/${LIBDIR}/cddp/cddp-gloo.so)
  set(ENV{CC} ${C})
  run(${BASH} ${CONSUMER}/../../readme/howto_test.sh ${CONSUMER}/../../../docs/howto/your-program.md ${prefix} ${WORK}/howto)
  message(STATUS "${output}")
endif()

find_program(PKG_CONFIG NAMES pkg-config pkgconf)
if(NOT PKG_CONFIG)
  message(STATUS "pkg-config is not installed: cddp.pc was not tried")
  return()
endif()
set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
set(ENV{LD_LIBRARY_PATH} ${prefix}/${LIBDIR}) # with CDDP_SHARED the linker takes the shared one
run(${PKG_CONFIG} --variable=backenddir cddp)
string(STRIP "${output}" backends)
if(NOT IS_DIRECTORY ${backends})
  message(FATAL_ERROR "cddp.pc says that backends are in '${backends}'")
endif()
run(${PKG_CONFIG} --cflags --libs cddp_store)
string(STRIP "${output}" flags)
separate_arguments(flags UNIX_COMMAND "${flags}")
run(${C} -std=c11 -Wall -Wextra -pedantic -Werror ${CONSUMER}/store.c -o ${WORK}/store_c ${flags})
run(${WORK}/store_c ${WORK}/none.db)
if(NOT output MATCHES "there is no store")
  message(FATAL_ERROR "a program with the store printed: ${output}")
endif()
run(${PKG_CONFIG} --cflags --libs cddp)
string(STRIP "${output}" flags)
separate_arguments(flags UNIX_COMMAND "${flags}")
run(${C} -std=c11 -Wall -Wextra -pedantic -Werror ${CONSUMER}/average.c -o ${WORK}/average_c ${flags})
expect_greeting(${WORK}/average_c)
if(CXX)
  run(${CXX} -std=c++17 -Wall -Wextra -pedantic -Werror -x c++ ${CONSUMER}/average.c -x none -o ${WORK}/average_cxx ${flags})
  expect_greeting(${WORK}/average_cxx)
endif()
