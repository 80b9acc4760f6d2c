#pragma once
#include <atomic>
#include <functional>
#include <mutex>

#include "transport/gpu/gpu_collectives.hpp"
#include "transport/gpu/gpu_links.hpp"
#include "transport/nccl/nccl_calls.hpp"

namespace stretto {

// The place of this member in its communicator.
struct NcclMember {
  int rank = 0;
  int size = 1;
  int least_major = 8;   // the smallest compute capability (major) among the members' GPUs: the same on all
  double timeout = 600;  // seconds for the others to end the communicator
};

// The messages and collectives of one communicator by NCCL. An exchange may have to wait for peers that it meets for the
// first time: abort(), called by another thread, ends that wait, too.
class NcclLinks final : public GpuLinks, public GpuCollectives {
 public:
  // Collective over the members; id is from one of them. check: throws when a rank is lost; called while waiting for the
  // others at the beginning and at the end.
  NcclLinks(NcclCalls& nccl, Gpu& gpu, const NcclMember& member, const NcclId& id, const std::function<void()>& check);
  // Over a communicator of the program, which must outlive this object; abort() then only ends its use here.
  NcclLinks(NcclCalls& nccl, Gpu& gpu, const NcclMember& member, NcclComm comm);
  // Collective, like the end of NCCL's communicator: waits for the operations in flight, and for the others. After abort()
  // it waits for nothing.
  ~NcclLinks() override;
  NcclLinks(const NcclLinks&) = delete;
  NcclLinks& operator=(const NcclLinks&) = delete;

  // Whether NCCL has such a collective at all; for reductions of 8-bit floats the members' GPUs decide as well: does().
  static bool knows(const GpuCollective& call);

  const char* route() const override { return "nccl"; }
  void exchange(const std::vector<GpuMessage>& messages, GpuStream stream) override;
  GpuCollectives* collectives() override { return this; }
  bool does(const GpuCollective& call) const override;
  void perform(const GpuCollective& call, GpuStream stream) override;
  std::string failure() override;
  void abort() override;

 private:
  NcclComm usable() const;  // throws after abort()
  void settle(NcclComm comm) const;
  void end();

  NcclCalls& nccl_;
  Gpu& gpu_;
  NcclMember member_;
  std::function<void()> check_;
  mutable std::mutex calling_;  // NCCL, with this communicator
  NcclComm comm_;               // under it: null after abort()
  std::atomic<bool> aborting_ = false;
  bool owns_;
};

}  // namespace stretto
