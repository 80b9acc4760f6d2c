#pragma once
#include <memory>
#include <string>
#include <vector>

#include "transport/gpu/ipc_peer.hpp"
#include "transport/gpu/staging.hpp"
#include "transport/links.hpp"

namespace stretto {

// Blocks in the GPUs' own memory, for ranks of one host: the sender copies into a block of its own, the receiver from it,
// through CUDA's IPC. That is one copy more than needed, at the speed of the GPU's memory, and none through the host's.
//
// What is shared are these blocks only, by a handle that is made and opened once, at set-up; never the memory that messages
// lie in. Handles of that would have to be kept, since opening one takes long, and nobody tells those who keep them when the
// memory has been released, and is another's by now.
class IpcStaging final : public Staging {
 public:
  struct SetUp {
    std::unique_ptr<IpcStaging> staging;  // null: it cannot be
    std::string obstacle;                 // then: why, the same on all members
  };
  // Collective over members that all share the host's memory. is_here: by member, whether it is a thread of this process:
  // CUDA does not open a handle where it was made, and there memory is reached without. links: of this communicator, for
  // longer than this; it uses their gpu_lane.
  static SetUp set_up(Gpu& gpu, Links& links, const ExchangeBytes& exchange_bytes, const std::vector<bool>& is_here,
                      const IpcBlocks& blocks);
  // What serves so many members: 4 blocks of 4 MiB for each other one, or smaller ones, so that a member's take at most 64
  // MiB in all.
  static IpcBlocks blocks_for(int members);

  ~IpcStaging() override;
  IpcStaging(const IpcStaging&) = delete;
  IpcStaging& operator=(const IpcStaging&) = delete;

  const char* route() const override { return "ipc"; }
  const char* means() const override { return "by CUDA IPC"; }
  std::unique_ptr<StagedMessage> begin(const GpuMessage& message, SideCopies& copies) override;
  bool settled() override;

 private:
  IpcStaging(Gpu& gpu, Links& links, const IpcBlocks& blocks) : gpu_(gpu), links_(links), blocks_(blocks) {}
  std::string lend(GpuShareHandle& handle);  // these give what is in the way, or nothing
  std::string reach(const std::vector<std::byte*>& memories, const std::vector<GpuShareHandle>& handles,
                    const std::vector<bool>& is_here);
  void release();
  void close_all();
  IpcPeer& peer(int member);

  Gpu& gpu_;
  Links& links_;
  IpcBlocks blocks_;
  std::byte* own_ = nullptr;                     // a circle of blocks for each other member, in their order
  std::vector<std::byte*> theirs_;               // by member
  std::vector<std::byte*> opened_;               // of these
  std::vector<std::unique_ptr<IpcPeer>> peers_;  // by member; made when first used
};

}  // namespace stretto
