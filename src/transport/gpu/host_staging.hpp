#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "transport/gpu/staging.hpp"
#include "transport/links.hpp"

namespace stretto {

// Blocks in the host's pinned memory, which go over the members' ordinary links: shared memory inside a host, UCX between
// hosts. While one block is with the link, others are being copied.
class HostStaging final : public Staging {
 public:
  // Large enough that a few of them keep a link between hosts and a copy engine busy.
  static constexpr std::size_t block_bytes = std::size_t{512} << 10;

  // links: of this communicator; they must outlive this object, which uses their gpu_lane.
  HostStaging(Gpu& gpu, Links& links) : gpu_(gpu), links_(links) {}
  ~HostStaging() override;
  HostStaging(const HostStaging&) = delete;
  HostStaging& operator=(const HostStaging&) = delete;

  const char* route() const override { return "staged"; }
  const char* means() const override { return "by way of the host"; }
  std::unique_ptr<StagedMessage> begin(const GpuMessage& message, SideCopies& copies) override;
  bool settled() override { return true; }  // the links keep copies of their own

  std::byte* take_block();
  void give_back(std::byte* block) { free_blocks_.push_back(block); }

 private:
  Gpu& gpu_;
  Links& links_;
  std::vector<std::byte*> blocks_, free_blocks_;
};

}  // namespace stretto
