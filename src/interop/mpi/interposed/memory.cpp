// Memory that a program gets from MPI is symmetric: all ranks of the host can access it, so collectives need no copies.
#include <map>

#include "door.hpp"
#include "stretto/error.hpp"
#include "stretto/memory.hpp"

namespace stretto::mpi_door {
namespace {

struct Blocks {
  std::mutex mutex;
  std::map<void*, std::shared_ptr<std::byte>> by_address;
};
Blocks& blocks() {
  static auto& all = *new Blocks;
  return all;
}

}  // namespace
}  // namespace stretto::mpi_door

using namespace stretto::mpi_door;  // NOLINT(google-build-using-namespace): the functions below have MPI's names, in no
                                    // namespace

int MPI_Alloc_mem(MPI_Aint bytes, MPI_Info info, void* address) {
  if (!door().serves() || bytes <= 0 || info != MPI_INFO_NULL) return PMPI_Alloc_mem(bytes, info, address);
  std::shared_ptr<std::byte> block;
  try {
    block = stretto::allocate(static_cast<std::size_t>(bytes));
  } catch (const stretto::Error&) {  // the MPI may still have memory, and reports it if it has none
    return PMPI_Alloc_mem(bytes, info, address);
  }
  void* const begin = block.get();
  *static_cast<void**>(address) = begin;
  const std::lock_guard lock(blocks().mutex);
  blocks().by_address.emplace(begin, std::move(block));
  return MPI_SUCCESS;
}

int MPI_Free_mem(void* address) {
  {
    const std::lock_guard lock(blocks().mutex);
    if (blocks().by_address.erase(address) > 0) return MPI_SUCCESS;
  }
  return PMPI_Free_mem(address);
}
