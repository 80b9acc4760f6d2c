#pragma once
#include <memory>
#include <string>
#include <vector>

#include "transport/gpu/ipc_peer.hpp"
#include "transport/gpu/staging.hpp"
#include "transport/links.hpp"

namespace stretto {

// Blocks in the GPUs' own memory, for ranks of one host: the sender copies into a block of its own, the receiver from it,
// through CUDA IPC. That is one copy more than needed, at the speed of the GPU's memory, and none through the host's.
//
// Only these blocks are shared, never the memory of the messages. A block's handle is made and opened once, at set-up.
// Handles of the messages' memory would have to be kept open, since opening one takes long. But nothing tells the ranks that
// keep a handle when its memory is released and used for something else.
class IpcStaging final : public Staging {
 public:
  struct SetUp {
    std::unique_ptr<IpcStaging> staging;  // null if it is impossible
    std::string obstacle;                 // the reason, the same on all members
  };
  // Collective over members that all share the host's memory. is_here: by member, whether it is a thread of this process:
  // CUDA does not open a handle in the process that made it, and the process reaches the memory without one. links: of this
  // communicator; they must outlive the staging, which uses their gpu_lane.
  static SetUp set_up(Gpu& gpu, Links& links, const ExchangeBytes& exchange_bytes, const std::vector<bool>& is_here,
                      const IpcBlocks& blocks);
  // The blocks for this number of members: 4 of 4 MiB for each other member; smaller ones if one member's blocks would take
  // more than 64 MiB.
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
  std::string lend(GpuShareHandle& handle);  // lend() and reach() return the obstacle, or ""
  std::string reach(const std::vector<std::byte*>& memories, const std::vector<GpuShareHandle>& handles,
                    const std::vector<bool>& is_here);
  void release();
  void close_all();
  IpcPeer& peer(int member);

  Gpu& gpu_;
  Links& links_;
  IpcBlocks blocks_;
  std::byte* own_ = nullptr;                     // a circle of blocks for each other member, in the order of members
  std::vector<std::byte*> theirs_;               // by member
  std::vector<std::byte*> opened_;               // those of `theirs_` that this process has opened
  std::vector<std::unique_ptr<IpcPeer>> peers_;  // by member; made when first used
};

}  // namespace stretto
