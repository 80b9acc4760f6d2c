# CUDA, NCCL and cuDNN. Sets CUDA_FOUND, NCCL_FOUND and CUDNN_FOUND where libstretto can be compiled with them (nvcc is there; a GPU need
# not be), and STRETTO_CUDA_HEADERS and STRETTO_NCCL_HEADERS where their headers are: the NCCL door and the tests that compile
# kernels for the host need no more, and are built without nvcc, too.
function(version_in header prefix patch result) # of three lines like "#define NCCL_MAJOR 2"
  file(STRINGS ${header} lines REGEX "^#define ${prefix}_(MAJOR|MINOR|PATCH${patch}) +[0-9]+")
  string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]+([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2.\\3" version "${lines}")
  set(${result} ${version} PARENT_SCOPE)
endfunction()
set(CUDA_FOUND OFF)
set(NCCL_FOUND OFF)
set(CUDNN_FOUND OFF)
set(STRETTO_CUDA_HEADERS OFF)
set(STRETTO_NCCL_HEADERS OFF)
find_package(CUDAToolkit 12.0 QUIET)
if(CUDAToolkit_FOUND)
  set(STRETTO_CUDA_HEADERS ON)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    version_in(${NCCL_INCLUDE_DIR}/nccl.h NCCL "" nccl_version)
    if(nccl_version VERSION_GREATER_EQUAL 2.28)
      set(STRETTO_NCCL_HEADERS ON)
    else()
      message(STATUS "NCCL ${nccl_version} in ${NCCL_INCLUDE_DIR} is left out; Stretto needs 2.28 or newer")
    endif()
  endif()
endif()
if(STRETTO_CUDA_HEADERS AND NOT STRETTO_WITH_CUDA STREQUAL "OFF")
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;100" CACHE STRING "GPUs to compile for: A100, H100/H200, B200 and what follows")
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # The static runtime has 4 KiB of static thread-local memory, for which there is no room where a program loads the library late,
    # as Python does.
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
    enable_language(CUDA)
    # CMake 3.25, which Debian 12 has, does not know yet how to ask nvcc for it.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    set(CUDA_FOUND ON)
    set(NCCL_FOUND ${STRETTO_NCCL_HEADERS})
    if(NCCL_FOUND) # it is loaded when it is first used, and found as if it were linked
      get_filename_component(nccl_folder ${NCCL_LIBRARY} DIRECTORY)
      list(APPEND CMAKE_BUILD_RPATH ${nccl_folder})
    endif()
    # Header-only, over the cuDNN that is there: from the Python package nvidia-cudnn-frontend, where python3 has it or where
    # ./dev deps puts it.
    if(NOT CUDNN_FRONTEND_INCLUDE_DIR)
      execute_process(
        COMMAND python3 -c "from importlib.metadata import files
print(next(f for f in files('nvidia-cudnn-frontend') if f.name == 'cudnn_frontend.h').locate().parent)"
        OUTPUT_VARIABLE python_has_it OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    endif()
    find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
      HINTS ${python_has_it} ${PROJECT_SOURCE_DIR}/.cache/cudnn-frontend/include)
    find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_library(CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
    if(CUDNN_FRONTEND_INCLUDE_DIR AND CUDNN_INCLUDE_DIR AND CUDNN_LIBRARY)
      set(CUDNN_FOUND ON)
      get_filename_component(cudnn_folder ${CUDNN_LIBRARY} DIRECTORY)
      list(APPEND CMAKE_BUILD_RPATH ${cudnn_folder})
      version_in(${CUDNN_INCLUDE_DIR}/cudnn_version.h CUDNN LEVEL cudnn_version)
    endif()
  endif()
endif()
