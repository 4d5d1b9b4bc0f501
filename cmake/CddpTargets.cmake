# SPDX-License-Identifier: Apache-2.0
# The few helpers that every CMakeLists.txt of the tree uses. Flags live on one target, cddp_options.
#
#   cddp_module       one module of the layer table: an archive that unit tests link, objects for the library
#   cddp_def_sources  the source list that the rows of a .def file name
#   cddp_backend      one transport: compiled in, a loadable module beside the program, or absent with a reason
#   cddp_program      an executable made of every module, able to load plugins
#   cddp_test         a cmocka executable registered with CTest

include(GNUInstallDirs)

add_library(cddp_options INTERFACE)
target_include_directories(cddp_options INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_compile_features(cddp_options INTERFACE c_std_11)
target_link_libraries(cddp_options INTERFACE m) # here, so that it follows every archive that needs it
# Contraction is off everywhere: with it "the same run" differs by compiler (docs/determinism.md).
target_compile_options(cddp_options INTERFACE
  -ffp-contract=off -fno-fast-math -fvisibility=hidden
  # Traces and reports name source files; they must not depend on where the tree was unpacked.
  -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=
  $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wshadow -Wconversion -Wvla -Wstrict-prototypes -Wmissing-prototypes>
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow>)

# GCC clears and copies structures of some hundred bytes by "rep stos" and "rep movs", which take as long to begin as the
# whole of it; an operation of a group is such a structure (bench/explore_bench.c: a sixth more schedules by calls).
include(CheckCCompilerFlag)
set(cddp_by_calls -mmemcpy-strategy=libcall:-1:noalign -mmemset-strategy=libcall:-1:noalign)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  check_c_compiler_flag("-mmemcpy-strategy=libcall:-1:noalign -mmemset-strategy=libcall:-1:noalign" CDDP_HAS_BY_CALLS)
endif()
if(CDDP_HAS_BY_CALLS)
  target_compile_options(cddp_options INTERFACE $<$<COMPILE_LANGUAGE:C>:${cddp_by_calls}>)
endif()

option(CDDP_WERROR "Warnings are errors" OFF)
if(CDDP_WERROR)
  target_compile_options(cddp_options INTERFACE -Werror)
endif()

set(CDDP_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them: address,undefined or thread")
if(CDDP_SANITIZE)
  target_compile_options(cddp_options INTERFACE
    -fsanitize=${CDDP_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(cddp_options INTERFACE -fsanitize=${CDDP_SANITIZE})
endif()

option(CDDP_COVERAGE "Instrument for gcov" OFF)
if(CDDP_COVERAGE)
  target_compile_options(cddp_options INTERFACE --coverage -fprofile-update=atomic)
  target_link_options(cddp_options INTERFACE --coverage)
endif()

option(CDDP_SHARED "Also build and install libcddp as a shared library" ON)

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# cddp_module(base SOURCES a.c b.c USES x y [LINK libs] [LIBRARY cddp_store | NONE])
#
# One module, linking only its row of the layer table: a unit test that links cddp_<name> fails to link when
# the module calls upwards. Its objects go into LIBRARY: `cddp` (the default: plain C, no outside library but
# libm), another one for a part with outside dependencies, or NONE for what only programs contain.
function(cddp_module name)
  cmake_parse_arguments(M "" "LIBRARY" "SOURCES;USES;LINK" ${ARGN})
  if(M_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "cddp_module(${name}): unknown arguments ${M_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT M_LIBRARY)
    set(M_LIBRARY cddp)
  endif()
  add_library(cddp_${name} STATIC ${M_SOURCES})
  target_link_libraries(cddp_${name} PUBLIC cddp_options)
  if(CDDP_SANITIZE) # instrumented code that nothing optimises takes twice as long to run
    target_compile_options(cddp_${name} PRIVATE $<$<CONFIG:Debug>:-O1>)
  endif()
  foreach(use IN LISTS M_USES)
    target_link_libraries(cddp_${name} PUBLIC cddp_${use})
  endforeach()
  target_link_libraries(cddp_${name} PUBLIC ${M_LINK})
  # Objects made elsewhere (assembler of a library) are sources of the archive but not among its TARGET_OBJECTS.
  set(objects ${M_SOURCES})
  list(FILTER objects INCLUDE REGEX "\\.o$")
  list(PREPEND objects $<TARGET_OBJECTS:cddp_${name}>)
  set_property(GLOBAL APPEND PROPERTY CDDP_OBJECTS ${objects})
  set_property(GLOBAL APPEND PROPERTY CDDP_MODULE_LINKS ${M_LINK})
  if(NOT M_LIBRARY STREQUAL NONE)
    set_property(GLOBAL APPEND PROPERTY CDDP_LIBRARIES ${M_LIBRARY})
    set_property(GLOBAL APPEND PROPERTY CDDP_OBJECTS_OF_${M_LIBRARY} ${objects})
    set_property(GLOBAL APPEND PROPERTY CDDP_LINKS_OF_${M_LIBRARY} ${M_LINK})
    if("${M_SOURCES}" MATCHES "\\.cc(;|$)")
      set_property(GLOBAL PROPERTY CDDP_LANGUAGE_OF_${M_LIBRARY} CXX)
    endif()
  endif()
endfunction()

# cddp_def_sources(out hooks.def CD_HOOK): `<first argument>.c` of every row `CD_HOOK(name, …)`, in order.
# Editing the .def file reruns CMake, so a row is all it takes to compile a new part.
function(cddp_def_sources out def macro)
  get_filename_component(path ${def} ABSOLUTE BASE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  file(STRINGS ${path} rows REGEX "^${macro}\\(")
  set(sources "")
  foreach(row IN LISTS rows)
    string(REGEX REPLACE "^${macro}\\( *([a-z0-9_]+).*" "\\1.c" source "${row}")
    list(APPEND sources ${source})
  endforeach()
  if(NOT sources)
    message(FATAL_ERROR "${path} has no ${macro}(…) row")
  endif()
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

include(${CMAKE_CURRENT_LIST_DIR}/CddpBackends.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/CddpInstall.cmake)

# Makes the libraries from the objects of their modules. Called once, after the last module.
function(cddp_assemble_libraries)
  get_property(libraries GLOBAL PROPERTY CDDP_LIBRARIES)
  list(REMOVE_DUPLICATES libraries)
  foreach(library IN LISTS libraries)
    cddp_assemble_one(${library} ${library} STATIC)
    if(CDDP_SHARED AND library STREQUAL cddp)
      cddp_assemble_one(cddp cddp_shared SHARED)
      if(NOT CDDP_SANITIZE) # its run-time library is the program's
        target_link_options(cddp_shared PRIVATE -Wl,--no-undefined)
      endif()
      # A recording ends with the process, and modules use its symbols: dlclose must not take it away.
      target_link_options(cddp_shared PRIVATE -Wl,-z,nodelete)
      target_link_options(cddp_shared PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/cddp.map)
      set_property(TARGET cddp_shared APPEND PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/cddp.map)
      # Backends lie in the folder cddp beside it, where cddp_init looks for them.
      set_target_properties(cddp_shared PROPERTIES OUTPUT_NAME cddp VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/${CMAKE_INSTALL_LIBDIR})
    endif()
  endforeach()
  cddp_install()
endfunction()

function(cddp_assemble_one library target type)
  get_property(objects GLOBAL PROPERTY CDDP_OBJECTS_OF_${library})
  get_property(links GLOBAL PROPERTY CDDP_LINKS_OF_${library})
  get_property(language GLOBAL PROPERTY CDDP_LANGUAGE_OF_${library})
  add_library(${target} ${type} ${objects})
  string(REGEX REPLACE "^cddp_" "" short ${target})
  add_library(cddp::${short} ALIAS ${target})
  if(NOT language)
    set(language C)
  endif()
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE ${language} EXPORT_NAME ${short})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  if(NOT library STREQUAL cddp)
    target_link_libraries(${target} PUBLIC cddp)
  endif()
  target_link_libraries(${target} PUBLIC ${links} m)
  if(CDDP_SANITIZE)
    target_link_options(${target} PUBLIC -fsanitize=${CDDP_SANITIZE})
  endif()
endfunction()

# cddp_program(cddp-verify SOURCES main.c … [LINK libs] [INSTALL]): an executable in bin/ that contains every module
# whole, so that plugins find the public symbols whether or not the program itself calls them.
function(cddp_program name)
  cmake_parse_arguments(P "INSTALL" "" "SOURCES;LINK" ${ARGN})
  get_property(objects GLOBAL PROPERTY CDDP_OBJECTS)
  get_property(links GLOBAL PROPERTY CDDP_MODULE_LINKS)
  add_executable(${name} ${P_SOURCES} ${objects})
  target_link_libraries(${name} PRIVATE cddp_options ${links} ${P_LINK} ${CMAKE_DL_LIBS})
  # Whoever builds the program gets the modules that it opens on demand.
  get_property(backends GLOBAL PROPERTY CDDP_BACKEND_MODULES)
  if(backends)
    add_dependencies(${name} ${backends})
  endif()
  set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  if(CMAKE_CXX_COMPILER)
    # Objects do not say their language; some are C++.
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  endif()
  if(P_INSTALL)
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
  endif()
endfunction()

# cddp_test(reducer SOURCES reducer_test.c USES ddp sim LABELS unit TIMEOUT 60): a cmocka executable.
function(cddp_test name)
  cmake_parse_arguments(T "RUN_SERIAL" "TIMEOUT" "SOURCES;USES;LABELS;LINK;ARGS" ${ARGN})
  if(T_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "cddp_test(${name}): unknown arguments ${T_UNPARSED_ARGUMENTS}")
  endif()
  add_executable(${name}_test ${T_SOURCES})
  target_compile_options(${name}_test PRIVATE $<$<CONFIG:Release>:-O1>) # compiled once, run for a second
  target_link_libraries(${name}_test PRIVATE cddp_test_support)
  foreach(use IN LISTS T_USES)
    target_link_libraries(${name}_test PRIVATE cddp_${use})
  endforeach()
  target_link_libraries(${name}_test PRIVATE ${T_LINK})
  add_test(NAME ${name} COMMAND ${name}_test ${T_ARGS})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  if(NOT T_LABELS)
    set(T_LABELS unit)
  endif()
  cddp_test_properties(${name} ${T_TIMEOUT} "${T_LABELS}")
  if(T_RUN_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

# The longest tests take turns: CDDP_SEED draws which are run; the others are labelled long. Tests of whole programs are one of three
# under sanitizers, since the plain build has them all; WITH EVERY_BUILD, one of two, whatever the build.
set(CDDP_SEED "" CACHE STRING "Draws which part of the longest tests is run; empty: all of them")
function(cddp_test_in_turn name place)
  cmake_parse_arguments(T "" "WITH" "" ${ARGN})
  set(of 3)
  if(T_WITH STREQUAL "EVERY_BUILD")
    set(of 2)
  elseif(NOT CDDP_SANITIZE)
    return()
  endif()
  if(CDDP_SEED MATCHES "^[0-9]+$")
    math(EXPR rest "(${CDDP_SEED} + ${place}) % ${of}")
    if(rest)
      set_property(TEST ${name} APPEND PROPERTY LABELS slow long)
    endif()
  endif()
endfunction()

# The time-out is meant for a plain build; instrumented ones get four times as much.
function(cddp_test_properties name timeout labels)
  if(CDDP_SANITIZE OR CDDP_COVERAGE)
    math(EXPR timeout "${timeout} * 4")
  endif()
  # what may take longest begins first, so that no processor is idle at the end
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} COST ${timeout} LABELS "${labels}" SKIP_RETURN_CODE 77)
  if(CDDP_SANITIZE MATCHES "thread")
    set_tests_properties(${name} PROPERTIES
      ENVIRONMENT "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp:halt_on_error=1")
  endif()
endfunction()
