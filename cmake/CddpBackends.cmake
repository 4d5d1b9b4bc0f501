# SPDX-License-Identifier: Apache-2.0
# Backends: which transports this build has, and why it lacks the others.
#
#   cddp_backend(self BUILTIN SUMMARY "one rank, no transport" SOURCES self/self_backend.c)
#   cddp_backend(gloo SUMMARY "…" SOURCES … FIND Gloo PACKAGE libgloo-dev LINK gloo)
#
# A find module may say what is missing in <Package>_REASON, and in <Package>_VERSION what it found. Sources that
# end in .cu are compiled by CUDA_NVCC into machine code for CDDP_CUDA_ARCHITECTURES and PTX for the last of them.
#
# A backend without outside dependencies is BUILTIN: a module of the library. Every other one becomes a shared
# object in lib/cddp beside the program, exporting cddp_plugin_v1 as any plugin does, and is opened only when
# it is asked for: the same installed program starts on a machine that lacks the transport.
#
# ALIAS is a name that several backends share; it means the first that is here, or the one whose launcher's variable
# JOB stands in the environment.
#
# CDDP_BACKEND_<NAME> = AUTO (built when found; the reason is printed when not) | ON (absence is an error) | OFF

function(cddp_backend name)
  cmake_parse_arguments(B "BUILTIN" "SUMMARY;FIND;PACKAGE;ALIAS;JOB" "SOURCES;USES;LINK;COMPONENTS" ${ARGN})
  if(B_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "cddp_backend(${name}): unknown arguments ${B_UNPARSED_ARGUMENTS}")
  endif()
  if(B_BUILTIN)
    cddp_module(backend_${name} SOURCES ${B_SOURCES} USES base ${B_USES} LINK ${B_LINK})
    set(module "")
    set(reason "")
    message(STATUS "backend ${name}: built in")
  else()
    cddp_backend_switch(${name} upper)
    set(CDDP_BACKEND_${upper} AUTO CACHE STRING "Backend ${name}: AUTO, ON or OFF")
    set_property(CACHE CDDP_BACKEND_${upper} PROPERTY STRINGS AUTO ON OFF)
    cddp_backend_reason(${name} "${CDDP_BACKEND_${upper}}" reason)
    if(reason)
      set(module "")
      message(STATUS "backend ${name}: off, ${reason}")
    else()
      cddp_backend_module(${name})
      set(module "cddp-${name}.so")
      message(STATUS "backend ${name}: on${found}")
    endif()
  endif()
  set_property(GLOBAL APPEND_STRING PROPERTY CDDP_BACKEND_ROWS
    "    {\"${name}\", \"${B_SUMMARY}\", \"${module}\", \"${reason}\", \"${B_ALIAS}\", \"${B_JOB}\"},\n")
endfunction()

# mpi-mpich is switched by CDDP_BACKEND_MPI_MPICH.
function(cddp_backend_switch name out)
  string(TOUPPER ${name} upper)
  string(REPLACE "-" "_" upper ${upper})
  set(${out} ${upper} PARENT_SCOPE)
endfunction()

# Why a backend cannot be built, or "" when it can; in `found`, what a find module says in words about what it found.
# Reads the B_ arguments of cddp_backend.
function(cddp_backend_reason name mode out)
  set(reason "")
  if(mode STREQUAL OFF)
    cddp_backend_switch(${name} upper)
    set(${out} "switched off (CDDP_BACKEND_${upper}=OFF)" PARENT_SCOPE)
    return()
  endif()
  if(NOT mode STREQUAL AUTO AND NOT mode STREQUAL ON)
    cddp_backend_switch(${name} upper)
    message(FATAL_ERROR "CDDP_BACKEND_${upper} is '${mode}'; it must be AUTO, ON or OFF")
  endif()
  if("${B_SOURCES}" MATCHES "\\.cc(;|$)" AND NOT CMAKE_CXX_COMPILER)
    set(reason "its shim needs a C++ compiler")
  elseif("${B_SOURCES}" MATCHES "\\.cu(;|$)" AND "${PROJECT_SOURCE_DIR}${PROJECT_BINARY_DIR}" MATCHES "['$`]")
    set(reason "CUDA's compiler does not find files below a folder with ${CMAKE_MATCH_0} in its name")
  elseif(B_FIND)
    set(components "")
    if(B_COMPONENTS)
      set(components COMPONENTS ${B_COMPONENTS})
    endif()
    find_package(${B_FIND} QUIET ${components})
    if(NOT ${B_FIND}_FOUND AND ${B_FIND}_REASON)
      set(reason "${${B_FIND}_REASON}")
    elseif(NOT ${B_FIND}_FOUND)
      if(B_COMPONENTS)
        set(reason "${B_COMPONENTS} was not found")
      else()
        set(reason "${B_FIND} was not found")
      endif()
      if(B_PACKAGE)
        string(APPEND reason " (Debian package ${B_PACKAGE})")
      endif()
    endif()
  endif()
  if(reason AND mode STREQUAL ON)
    message(FATAL_ERROR "backend ${name} was asked for, but ${reason}")
  endif()
  set(${out} "${reason}" PARENT_SCOPE)
  set(found "" PARENT_SCOPE)
  if(${B_FIND}_VERSION AND NOT ${B_FIND}_VERSION MATCHES "^[0-9.]*$")
    set(found ", ${${B_FIND}_VERSION}" PARENT_SCOPE)
  endif()
endfunction()

# One .cu file, compiled without CMake's CUDA language: that one costs nine seconds of configuration. No fused
# multiply-add, as everywhere; no exceptions, guards or RTTI, so that the C linker suffices.
function(cddp_cuda_object out source)
  set(CDDP_CUDA_ARCHITECTURES 80 90 CACHE STRING "GPU architectures of the kernels; PTX is added for the last one")
  set(code "")
  foreach(architecture IN LISTS CDDP_CUDA_ARCHITECTURES)
    list(APPEND code -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(GET CDDP_CUDA_ARCHITECTURES -1 last)
  list(APPEND code -gencode arch=compute_${last},code=compute_${last})
  set(warnings "")
  if(CDDP_WERROR)
    set(warnings -Werror all-warnings)
  endif()
  get_filename_component(path ${source} ABSOLUTE)
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.cu.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CUDA_NVCC} -std=c++17 -O3 --fmad=false ${code} ${warnings}
      -Xcompiler=-fPIC,-fvisibility=hidden,-ffp-contract=off,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall,-Wextra
      -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/include -MD -MF ${object}.d -c ${path} -o ${object}
    DEPENDS ${path} DEPFILE ${object}.d COMMENT "Compiling ${source} for GPUs ${CDDP_CUDA_ARCHITECTURES}" VERBATIM)
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  set_property(GLOBAL APPEND PROPERTY CDDP_CUDA_OBJECTS ${object})
  set(${out} ${object} PARENT_SCOPE)
endfunction()

function(cddp_backend_module name)
  set(target cddp_backend_${name})
  set(sources ${B_SOURCES})
  set(kernels ${B_SOURCES})
  list(FILTER sources EXCLUDE REGEX "\\.cu$")
  list(FILTER kernels INCLUDE REGEX "\\.cu$")
  foreach(kernel IN LISTS kernels)
    cddp_cuda_object(object ${kernel})
    list(APPEND sources ${object})
  endforeach()
  add_library(${target} MODULE ${sources})
  target_link_libraries(${target} PRIVATE cddp_options cddp_base)
  foreach(use IN LISTS B_USES)
    target_link_libraries(${target} PRIVATE cddp_${use})
  endforeach()
  target_link_libraries(${target} PRIVATE ${B_LINK})
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME cddp-${name} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/${CMAKE_INSTALL_LIBDIR}/cddp
    INSTALL_RPATH_USE_LINK_PATH ON) # a library outside the loader's own folders is found where it was linked
  # A private copy of core/base lives in each module; nothing but the plugin's symbol leaves it.
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,ALL)
  set_property(GLOBAL APPEND PROPERTY CDDP_BACKEND_MODULES ${target})
  install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/cddp COMPONENT runtime)
endfunction()

# The table of backends as C, compiled beside backends/table/builtin.c. Called once, after the last cddp_backend.
function(cddp_backend_table out)
  get_property(CDDP_BACKEND_ROWS GLOBAL PROPERTY CDDP_BACKEND_ROWS)
  file(RELATIVE_PATH CDDP_MODULE_DIR ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/cddp)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/backend_table.c.in ${CMAKE_CURRENT_BINARY_DIR}/backend_table.c @ONLY)
  set(${out} ${CMAKE_CURRENT_BINARY_DIR}/backend_table.c PARENT_SCOPE)
endfunction()
