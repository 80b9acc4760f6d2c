// MPI's calls that open and close the door.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "door.hpp"

using stretto::mpi_door::door;

namespace {

#ifdef OPEN_MPI
constexpr bool built_for_open_mpi = true;
#else
constexpr bool built_for_open_mpi = false;
#endif

// Handles of one MPI mean nothing to another, so a program of the other MPI must not get further. MPI_Get_library_version
// may be called before MPI_Init, and answers for the MPI of the program, which the loader finds before the door's own.
void check_mpi() {
  std::array<char, std::max(MPI_MAX_LIBRARY_VERSION_STRING, 1 << 14)> text{};  // the other MPI may write more than this one
  int length = 0;
  PMPI_Get_library_version(text.data(), &length);
  const std::string_view version = text.data();
  const bool is_open_mpi = version.starts_with("Open MPI") || version.starts_with("IBM Spectrum MPI");
  if (is_open_mpi == built_for_open_mpi) return;
  Dl_info here{};
  dladdr(reinterpret_cast<const void*>(&check_mpi), &here);
  const std::filesystem::path door = here.dli_fname == nullptr ? "libstretto-mpi.so" : here.dli_fname;
  const std::filesystem::path other =
      door.parent_path().parent_path() / (is_open_mpi ? "openmpi" : "mpich") / door.filename();
  std::error_code ignored;
  std::fprintf(stderr,
               "error: stretto-mpi: %s is for programs of %s, but this one runs on %s; preload %s, which is for that.\n",
               door.c_str(), built_for_open_mpi ? "Open MPI" : "MPICH",
               std::string(version.substr(0, version.find_first_of(",\n"))).c_str(),
               std::filesystem::exists(other, ignored) ? other.c_str() : "the libstretto-mpi.so of another build");
  std::fflush(stderr);
  std::_Exit(1);
}

}  // namespace

int MPI_Init(int* argc, char*** argv) {
  check_mpi();
  const int result = PMPI_Init(argc, argv);
  if (result == MPI_SUCCESS) door().open();
  return result;
}

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  check_mpi();
  const int result = PMPI_Init_thread(argc, argv, required, provided);
  if (result == MPI_SUCCESS) door().open();
  return result;
}

int MPI_Finalize() {
  door().close();
  return PMPI_Finalize();
}
