# SPDX-License-Identifier: Apache-2.0
# CUDA's compiler and runtime together with NCCL, by their files alone: nothing is run, so looking costs nothing.
#
#   CudaNccl_FOUND, CudaNccl_REASON   the reason names the first thing that is missing
#   CUDA_NVCC, CudaNccl_VERSION       the compiler; "CUDA 13.0, NCCL 2.28.9"
#   CudaNccl::CudaNccl                headers, the static CUDA runtime, NCCL
#
# Looks in CUDA_PATH and CUDA_HOME (CMake variable or environment), in PATH and in /usr/local/cuda; NCCL also in
# NCCL_HOME. The runtime is linked statically, so that only NCCL and the driver need to be there later.

set(cuda_hints ${CUDA_PATH} ${CUDA_HOME} $ENV{CUDA_PATH} $ENV{CUDA_HOME})
set(nccl_hints ${NCCL_HOME} $ENV{NCCL_HOME})
find_program(CUDA_NVCC nvcc HINTS ${cuda_hints} PATHS /usr/local/cuda PATH_SUFFIXES bin)
set(cuda_root "")
if(CUDA_NVCC)
  get_filename_component(cuda_root ${CUDA_NVCC} REALPATH)
  get_filename_component(cuda_root ${cuda_root} DIRECTORY)
  get_filename_component(cuda_root ${cuda_root} DIRECTORY)
endif()
set(places HINTS ${nccl_hints} ${cuda_hints} PATHS ${cuda_root} /usr/local/cuda)
find_path(CUDA_INCLUDE_DIR cuda_runtime.h ${places} PATH_SUFFIXES include targets/x86_64-linux/include)
find_path(CUDA_CUBLAS_DIR cublas_v2.h ${places} PATH_SUFFIXES include targets/x86_64-linux/include)
find_library(CUDA_CUDART_STATIC cudart_static ${places} PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib)
find_path(NCCL_INCLUDE_DIR nccl.h ${places} PATH_SUFFIXES include)
find_library(NCCL_LIBRARY nccl ${places} PATH_SUFFIXES lib64 lib)
mark_as_advanced(CUDA_NVCC CUDA_INCLUDE_DIR CUDA_CUBLAS_DIR CUDA_CUDART_STATIC NCCL_INCLUDE_DIR NCCL_LIBRARY)

set(CudaNccl_REASON "")
if(NOT CUDA_NVCC)
  set(CudaNccl_REASON "CUDA's compiler nvcc was not found (PATH, CUDA_PATH, /usr/local/cuda)")
elseif(NOT CUDA_INCLUDE_DIR OR NOT CUDA_CUDART_STATIC)
  set(CudaNccl_REASON "cuda_runtime.h or libcudart_static.a was not found beside ${CUDA_NVCC}")
elseif(NOT CUDA_CUBLAS_DIR)
  set(CudaNccl_REASON "cublas_v2.h was not found beside ${CUDA_NVCC}")
elseif(NOT NCCL_INCLUDE_DIR OR NOT NCCL_LIBRARY)
  set(CudaNccl_REASON "nccl.h or libnccl was not found (NCCL_HOME, CUDA_PATH, the system)")
else()
  file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" numbers "${lines}")
  string(REPLACE ";" "." nccl_version "${numbers}")
  file(STRINGS ${CUDA_INCLUDE_DIR}/cuda_runtime_api.h line REGEX "^#define CUDART_VERSION ")
  string(REGEX REPLACE "[^0-9]" "" number "${line}")
  math(EXPR major "${number} / 1000")
  math(EXPR minor "${number} % 1000 / 10")
  set(CudaNccl_VERSION "CUDA ${major}.${minor}, NCCL ${nccl_version}")
  if(major LESS 12)
    set(CudaNccl_REASON "CUDA ${major}.${minor} is too old; 12.0 is the oldest that is supported")
  elseif(nccl_version VERSION_LESS 2.18)
    set(CudaNccl_REASON "NCCL ${nccl_version} is too old; ncclCommSplit came with 2.18")
  endif()
endif()

if(CudaNccl_REASON)
  set(CudaNccl_FOUND FALSE)
else()
  set(CudaNccl_FOUND TRUE)
  if(NOT TARGET CudaNccl::CudaNccl)
    add_library(CudaNccl::CudaNccl INTERFACE IMPORTED GLOBAL)
    target_include_directories(CudaNccl::CudaNccl INTERFACE ${CUDA_INCLUDE_DIR} ${NCCL_INCLUDE_DIR} ${CUDA_CUBLAS_DIR})
    target_link_libraries(CudaNccl::CudaNccl INTERFACE ${CUDA_CUDART_STATIC} ${NCCL_LIBRARY} ${CMAKE_DL_LIBS} pthread rt)
  endif()
endif()
