// Memory of the C interface: the symmetric heap, and registration of buffers.
#include "stretto/memory.hpp"

#include <cstdint>

#include "interop/c/group.hpp"

namespace stretto::c {
namespace {

// The blocks that strettoMemAlloc has returned, by address.
struct Blocks {
  struct Block {
    std::shared_ptr<std::byte> memory;
    std::size_t bytes;
  };
  std::mutex mutex;
  std::map<std::uintptr_t, Block> all;
};
Blocks& blocks() {
  static auto& given = *new Blocks;
  return given;
}

// Returns a registration of the buffer, or null unless the whole buffer lies in one block from strettoMemAlloc.
std::shared_ptr<strettoWindow> registration_of(const void* buffer, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(buffer);
  const std::lock_guard lock(blocks().mutex);
  auto block = blocks().all.upper_bound(begin);
  if (block == blocks().all.begin()) return nullptr;
  --block;
  const std::size_t offset = begin - block->first;
  if (offset > block->second.bytes || bytes > block->second.bytes - offset) return nullptr;
  return std::make_shared<strettoWindow>(strettoWindow{block->second.memory});
}

// Collective. Every member tells the others whether its buffer is symmetric, and the window opens only if all are.
void open_window(strettoComm& comm, const void* buffer, std::size_t bytes, strettoWindow_t* window) {
  struct Facts {  // travels as i64
    std::int64_t is_symmetric, bytes;
  };
  const std::shared_ptr<strettoWindow> mine = registration_of(buffer, bytes);
  const Facts own{mine != nullptr, static_cast<std::int64_t>(bytes)};
  std::vector<Facts> all(static_cast<std::size_t>(comm.ranks.size()));
  comm.ranks.all_gather(&own, all.data(), 2, DType::i64, Stream::inline_(), {.tag = "window"}).wait();
  for (int rank = 0; rank < comm.ranks.size(); ++rank) {
    const Facts& theirs = all[static_cast<std::size_t>(rank)];
    require(theirs.bytes == own.bytes, "A window of {} bytes on rank {} has {} bytes on rank {}; give all ranks the same.",
            own.bytes, comm.ranks.rank(), theirs.bytes, rank);
    require(
        theirs.is_symmetric != 0,
        "A window of {} bytes is not memory from strettoMemAlloc on rank {} of '{}'; use such memory on all ranks, or the "
        "buffer without a window.",
        own.bytes, rank, comm.ranks.name());
  }
  const std::lock_guard lock(comm.mutex);
  comm.windows.emplace(mine.get(), mine);
  *window = mine.get();
}

}  // namespace
}  // namespace stretto::c

using namespace stretto::c;
using stretto::require;
using Comm = std::shared_ptr<strettoComm>;

strettoResult_t strettoMemAlloc(void** ptr, size_t size) {
  return answer([&] {
    require(ptr != nullptr, "strettoMemAlloc got NULL for its result.");
    *ptr = nullptr;
    const std::shared_ptr<std::byte> memory = stretto::allocate(size);
    const std::lock_guard lock(blocks().mutex);
    blocks().all.emplace(reinterpret_cast<std::uintptr_t>(memory.get()), Blocks::Block{memory, size});
    *ptr = memory.get();
  });
}

strettoResult_t strettoMemFree(void* ptr) {
  return answer([&] {
    if (ptr == nullptr) return;
    const std::lock_guard lock(blocks().mutex);
    const auto block = blocks().all.find(reinterpret_cast<std::uintptr_t>(ptr));
    require(block != blocks().all.end(), "strettoMemFree got {}, which strettoMemAlloc did not give, or which is free.",
            ptr);
    const long registrations = block->second.memory.use_count() - 1;
    require_usage(registrations == 0, "strettoMemFree got {}, of which {} registrations or windows are still there.", ptr,
                  registrations);
    blocks().all.erase(block);
  });
}

strettoResult_t strettoCommRegister(const strettoComm_t handle, void* buff, size_t size, void** registration) {
  return answer_on(handle, [&](const Comm& comm) {
    require(registration != nullptr, "strettoCommRegister got NULL for its handle.");
    *registration = nullptr;
    const std::shared_ptr<strettoWindow> made = registration_of(buff, size);
    require(
        made != nullptr,
        "strettoCommRegister got {} bytes at {}, which are not memory from strettoMemAlloc; use that, or the buffer as it "
        "is.",
        size, buff);
    const std::lock_guard lock(comm->mutex);
    comm->registrations.emplace(made.get(), made);
    *registration = made.get();
  });
}

strettoResult_t strettoCommDeregister(const strettoComm_t handle, void* registration) {
  return answer_on(handle, [&](const Comm& comm) {
    const std::lock_guard lock(comm->mutex);
    require(comm->registrations.erase(registration) == 1, "Communicator '{}' has no registration {}.", comm->ranks.name(),
            registration);
  });
}

strettoResult_t strettoCommWindowRegister(strettoComm_t handle, void* buff, size_t size, strettoWindow_t* win,
                                          int winFlags) {
  return fail_group(answer_on(handle, [&](const Comm& comm) {
    require(win != nullptr, "strettoCommWindowRegister got NULL for its window.");
    *win = nullptr;
    require(winFlags == STRETTO_WIN_DEFAULT || winFlags == STRETTO_WIN_COLL_SYMMETRIC,
            "strettoCommWindowRegister got flags {}; there are STRETTO_WIN_DEFAULT and STRETTO_WIN_COLL_SYMMETRIC.",
            winFlags);
    require_open(*comm);
    run_or_collect({&comm->ranks.job().ledger(), [=] { open_window(*comm, buff, size, win); }});
  }));
}

strettoResult_t strettoCommWindowDeregister(strettoComm_t handle, strettoWindow_t win) {
  return answer_on(handle, [&](const Comm& comm) {
    const std::lock_guard lock(comm->mutex);
    require(comm->windows.erase(win) == 1, "Communicator '{}' has no window {}.", comm->ranks.name(),
            static_cast<const void*>(win));
  });
}
