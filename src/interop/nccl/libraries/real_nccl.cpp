#include "interop/nccl/libraries/real_nccl.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "interop/nccl/calls/answers.hpp"

namespace stretto::nccl_door {
namespace {

constinit thread_local int depth_inside = 0;
std::atomic<const RealNccl*> instead = nullptr;

RealNccl found_behind_the_door() {
  RealNccl found;
  // The libnccl that the program is linked with; else the one that the loader finds, for programs that open it later.
  void* behind = RTLD_NEXT;
  if (dlsym(RTLD_NEXT, "pncclGetVersion") == nullptr) {
    void* const opened = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (opened != nullptr) behind = opened;
  }
#define STRETTO_NCCL_FUNCTION(name) \
  found.name.function = reinterpret_cast<decltype(found.name)::Type>(dlsym(behind, "pnccl" #name));
  STRETTO_NCCL_FUNCTIONS(STRETTO_NCCL_FUNCTION)
#undef STRETTO_NCCL_FUNCTION
  return found;
}

}  // namespace

bool inside_nccl() { return depth_inside > 0; }
InsideNccl::InsideNccl() { ++depth_inside; }
InsideNccl::~InsideNccl() { --depth_inside; }

const RealNccl& real_nccl() {
  if (const RealNccl* const other = instead) return *other;
  // Never destroyed: a program may call NCCL until it ends.
  static const RealNccl& real = *new RealNccl(found_behind_the_door());
  return real;
}

void use_real_nccl(const RealNccl* other) { instead = other; }

ncclResult_t refuse_missing(const char* name) {
  return refuse(ncclInternalError, "The libnccl behind libstretto-nccl has no p{}; load one of version 2.28 or newer.",
                name);
}

void end_for_missing(const char* name) {
  std::fprintf(stderr, "error: The libnccl behind libstretto-nccl has no p%s; load one of version 2.28 or newer.\n", name);
  std::abort();
}

}  // namespace stretto::nccl_door
