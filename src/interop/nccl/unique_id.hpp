#pragma once
#include <cstdint>
#include <cstring>

#include "interop/nccl/nccl_names.hpp"
#include "stretto/stretto.h"

// The door's ids are those of the C interface. They have the size of NCCL's ids, and differ from these in their first bytes.
namespace stretto::nccl_door {

static_assert(sizeof(ncclUniqueId) == sizeof(strettoUniqueId));

constexpr std::uint32_t first_word_of_our_ids = 0x53740001;  // a test checks this value

inline bool is_ours(const ncclUniqueId& id) {
  std::uint32_t word = 0;
  std::memcpy(&word, &id, sizeof word);
  return word == first_word_of_our_ids;
}

inline strettoUniqueId as_ours(const ncclUniqueId& id) {
  strettoUniqueId ours;
  std::memcpy(&ours, &id, sizeof ours);
  return ours;
}

}  // namespace stretto::nccl_door
