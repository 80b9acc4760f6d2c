#include "transport/nccl/nccl_calls.hpp"

#include <atomic>

#include "core/fail.hpp"

namespace stretto {

#ifdef STRETTO_HAVE_NCCL
NcclCalls& nccl_library();  // nccl_library.cpp
#endif

namespace {

std::atomic<NcclCalls*> instead = nullptr;

}  // namespace

NcclCalls* nccl() {
  if (NcclCalls* const other = instead) return other;
#ifdef STRETTO_HAVE_NCCL
  return &nccl_library();
#else
  return nullptr;
#endif
}

void use_nccl(NcclCalls* other) { instead = other; }

#ifndef STRETTO_HAVE_NCCL
AdoptedNcclComm adopt_nccl_comm(void*) {
  fail(ErrorCode::unavailable, "This build of Stretto has no NCCL; configure it with CUDA and NCCL 2.28 or newer.");
}
#endif

}  // namespace stretto
