# Everything comes from Debian 12 packages; ./dev deps installs them.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
# oneDNN, OpenBLAS and UCX are loaded when they are first used (core/lazy_library.hpp): headers are compiled, nothing is linked.
pkg_check_modules(OPENBLAS REQUIRED openblas)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
# Debian's dnnl-config.cmake asks for OpenCL headers that a CPU user does not need.
find_path(DNNL_INCLUDE_DIR dnnl.hpp REQUIRED)

# An optional part is used when it is wanted and found; ON turns its absence into an error.
pkg_check_modules(UCX ucx)
find_package(MPI COMPONENTS C)
set(MPI_FOUND ${MPI_C_FOUND})
find_package(Gloo CONFIG QUIET) # a peer of stretto-perf
set(GLOO_FOUND ${Gloo_FOUND})
pkg_check_modules(PCRE2 IMPORTED_TARGET libpcre2-8>=10.40) # stretto-tokenize, and samples of tokens as text
pkg_check_modules(UTF8PROC IMPORTED_TARGET libutf8proc) # tokenizers that normalize texts (NFC)
pkg_check_modules(URING IMPORTED_TARGET liburing) # state in files, several reads and writes under way at a time
include(cmake/cuda.cmake)
foreach(part UCX MPI GLOO PCRE2 UTF8PROC URING CUDA NCCL CUDNN)
  set(STRETTO_HAVE_${part} OFF)
  if(NOT STRETTO_WITH_${part} STREQUAL "OFF")
    if(${part}_FOUND)
      set(STRETTO_HAVE_${part} ON)
    elseif(STRETTO_WITH_${part} STREQUAL "ON")
      message(FATAL_ERROR "STRETTO_WITH_${part}=ON, but ${part} was not found on this machine.")
    endif()
  endif()
  message(STATUS "Stretto with ${part}: ${STRETTO_HAVE_${part}}")
endforeach()
include(cmake/mpis.cmake)
