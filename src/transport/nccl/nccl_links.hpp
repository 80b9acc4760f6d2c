#pragma once
#include <atomic>

#include "transport/gpu_links.hpp"
#include "transport/nccl/nccl_calls.hpp"

namespace stretto {

// The messages and collectives of one communicator by NCCL.
class NcclLinks final : public GpuLinks {
 public:
  struct Place {
    int rank = 0;
    int size = 1;
    int least_major = 8;  // the smallest compute capability among the members' GPUs: the same on all
  };
  // Collective over the members, who have the id from one of them. check: see NcclCalls::join.
  NcclLinks(NcclCalls& nccl, Gpu& gpu, const Place& place, const NcclId& id, const std::function<void()>& check);
  // Over a communicator that the program keeps, longer than this; abort() then only ends the use of it here.
  NcclLinks(NcclCalls& nccl, Gpu& gpu, const Place& place, NcclComm comm);
  ~NcclLinks() override;  // collective, like that of NCCL's communicator; waits for what is under way
  NcclLinks(const NcclLinks&) = delete;
  NcclLinks& operator=(const NcclLinks&) = delete;

  const char* route() const override { return "nccl"; }
  void exchange(const std::vector<GpuMessage>& messages, GpuStream stream) override;
  bool does(const GpuCollective& call) const override;
  void perform(const GpuCollective& call, GpuStream stream) override;
  std::string failure() override;
  void abort() override;

 private:
  NcclComm usable() const;  // throws after abort()

  NcclCalls& nccl_;
  Gpu& gpu_;
  Place place_;
  std::atomic<NcclComm> comm_;  // null after abort(), which another thread may call
  bool owns_;
};

}  // namespace stretto
