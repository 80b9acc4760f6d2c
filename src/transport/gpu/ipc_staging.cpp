#include "transport/gpu/ipc_staging.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <exception>

#include "core/fail.hpp"
#include "transport/gpu/exchange_struct.hpp"

namespace stretto {
namespace {

constexpr std::size_t most_bytes = std::size_t{64} << 20;
constexpr std::size_t granule = std::size_t{64} << 10;

// An error's sentence, for use inside another sentence.
std::string without_stop(std::string sentence) {
  if (!sentence.empty() && sentence.back() == '.') sentence.pop_back();
  return sentence;
}

class IpcMessage final : public StagedMessage {
 public:
  IpcMessage(const GpuMessage& message, SideCopies& copies, IpcPeer& peer, const IpcBlocks& blocks, std::string between)
      : message_(message), copies_(copies), peer_(peer), block_bytes_(blocks.bytes), between_(std::move(between)) {}
  ~IpcMessage() override {
    for (const BlockCopy& block : blocks_) copies_.wait(block.copied);
  }
  IpcMessage(const IpcMessage&) = delete;
  IpcMessage& operator=(const IpcMessage&) = delete;

  bool advance() override {
    bool moved = peer_.progress();
    moved |= message_.sends ? fill_blocks() : empty_blocks();
    while (!blocks_.empty() && copies_.is_done(blocks_.front().copied)) {
      const std::size_t bytes = blocks_.front().bytes;
      message_.sends ? peer_.say_full(bytes) : peer_.say_empty();
      done_ += bytes;
      blocks_.pop_front();
      moved = true;
    }
    return peer_.progress() || moved;
  }
  bool complete() const override { return done_ == message_.bytes && peer_.has_told_all(); }
  bool waits_for_gpu() const override { return !blocks_.empty(); }

 private:
  struct BlockCopy {
    GpuEvent copied;
    std::size_t bytes;
  };
  std::size_t next_bytes() const { return std::min(block_bytes_, message_.bytes - begun_); }
  void begun(GpuEvent copied, std::size_t bytes) {
    blocks_.push_back({copied, bytes});
    begun_ += bytes;
  }

  bool fill_blocks() {
    bool moved = false;
    while (begun_ < message_.bytes) {
      std::byte* const block = peer_.take_own();
      if (block == nullptr) break;
      const std::size_t bytes = next_bytes();
      begun(copies_.out(block, message_.data + begun_, bytes), bytes);
      moved = true;
    }
    return moved;
  }

  bool empty_blocks() {
    bool moved = false;
    while (begun_ < message_.bytes) {
      const IpcPeer::Full block = peer_.take_full();
      if (block.memory == nullptr) break;
      const std::size_t bytes = next_bytes();
      require(block.bytes == bytes, "A message {} differs: {} bytes of it were sent where {} of {} were to be received.",
              between_, block.bytes, bytes, message_.bytes);
      begun(copies_.in(message_.data + begun_, block.memory, bytes), bytes);
      moved = true;
    }
    return moved;
  }

  GpuMessage message_;
  SideCopies& copies_;
  IpcPeer& peer_;
  std::size_t block_bytes_;
  std::string between_;
  std::deque<BlockCopy> blocks_;      // copies in progress
  std::size_t begun_ = 0, done_ = 0;  // bytes
};

}  // namespace

IpcBlocks IpcStaging::blocks_for(int members) {
  IpcBlocks blocks;
  const std::size_t all = blocks.number * static_cast<std::size_t>(std::max(members - 1, 1));
  blocks.bytes = std::min(blocks.bytes, std::max(most_bytes / all / granule * granule, granule));
  return blocks;
}

IpcStaging::SetUp IpcStaging::set_up(Gpu& gpu, Links& links, const ExchangeBytes& exchange_bytes,
                                     const std::vector<bool>& is_here, const IpcBlocks& blocks) {
  struct Lent {
    std::array<char, 256> obstacle{};
    GpuShareHandle handle{};
    std::byte* memory = nullptr;
  };
  const std::vector<int>& ranks = links.membership().job_ranks;
  std::unique_ptr<IpcStaging> staging(new IpcStaging(gpu, links, blocks));
  const auto first_obstacle = [&](const auto& all) {
    for (std::size_t member = 0; member < all.size(); ++member) {
      const std::string said = all[member].obstacle.data();
      if (!said.empty()) return fmt::format("rank {} {}", ranks[member], said);
    }
    return std::string();
  };

  Lent mine;
  put(mine.obstacle, staging->lend(mine.handle));
  mine.memory = staging->own_;
  const std::vector<Lent> lent = exchange_struct(exchange_bytes, mine);
  if (std::string obstacle = first_obstacle(lent); !obstacle.empty()) {
    staging->release();
    return {nullptr, std::move(obstacle)};
  }

  std::vector<std::byte*> memories;
  std::vector<GpuShareHandle> handles;
  for (const Lent& one : lent) {
    memories.push_back(one.memory);
    handles.push_back(one.handle);
  }
  struct Reached {
    std::array<char, 256> obstacle{};
  };
  Reached reached;
  put(reached.obstacle, staging->reach(memories, handles, is_here));
  std::string obstacle = first_obstacle(exchange_struct(exchange_bytes, reached));
  if (obstacle.empty()) return {std::move(staging), ""};
  staging->close_all();
  exchange_bytes({});  // then all members have closed the memory that they had opened
  staging->release();
  return {nullptr, std::move(obstacle)};
}

std::string IpcStaging::lend(GpuShareHandle& handle) {
  const std::size_t others = links_.membership().job_ranks.size() - 1;
  if (others == 0) return "";
  try {
    const GpuSharedMemory lent = links_.network().gpu_exports().take(gpu_, others * blocks_.of_one_peer());
    own_ = lent.memory;
    handle = lent.handle;
    return "";
  } catch (const std::exception& error) {
    return fmt::format("has no memory for others to open: {}", without_stop(error.what()));
  }
}

std::string IpcStaging::reach(const std::vector<std::byte*>& memories, const std::vector<GpuShareHandle>& handles,
                              const std::vector<bool>& is_here) {
  const Membership& members = links_.membership();
  theirs_.resize(memories.size());
  peers_.resize(memories.size());
  for (std::size_t member = 0; member < memories.size(); ++member) {
    if (static_cast<int>(member) == members.rank) continue;
    if (is_here[member]) {
      theirs_[member] = memories[member];
      continue;
    }
    try {
      theirs_[member] = gpu_.open_shared(handles[member]);
      opened_.push_back(theirs_[member]);
    } catch (const std::exception& error) {
      return fmt::format("does not reach the GPU of rank {}: {}", members.job_ranks[member], without_stop(error.what()));
    }
  }
  return "";
}

void IpcStaging::release() {
  if (own_ != nullptr) links_.network().gpu_exports().release(own_);
  own_ = nullptr;
}

void IpcStaging::close_all() {
  for (std::byte* const memory : opened_) gpu_.close_shared(memory);
  opened_.clear();
}

IpcStaging::~IpcStaging() {
  const bool nobody_copies = std::all_of(peers_.begin(), peers_.end(),
                                         [](const auto& peer) { return peer == nullptr || peer->has_been_emptied(); });
  peers_.clear();
  close_all();
  if (own_ != nullptr && nobody_copies) links_.network().gpu_exports().give_back(own_);
}

IpcPeer& IpcStaging::peer(int member) {
  std::unique_ptr<IpcPeer>& peer = peers_[member];
  if (peer) return *peer;
  const int rank = links_.membership().rank;
  const auto place = [](int owner, int other) { return static_cast<std::size_t>(other < owner ? other : other - 1); };
  peer = std::make_unique<IpcPeer>(links_.to(member, Links::gpu_lane), own_ + place(rank, member) * blocks_.of_one_peer(),
                                   theirs_[member] + place(member, rank) * blocks_.of_one_peer(), blocks_);
  return *peer;
}

std::unique_ptr<StagedMessage> IpcStaging::begin(const GpuMessage& message, SideCopies& copies) {
  const Membership& members = links_.membership();
  const int here = members.job_ranks[members.rank];
  const int there = members.job_ranks[message.peer];
  return std::make_unique<IpcMessage>(message, copies, peer(message.peer), blocks_,
                                      message.sends ? fmt::format("from rank {} to rank {}", here, there)
                                                    : fmt::format("from rank {} to rank {}", there, here));
}

bool IpcStaging::settled() {
  bool all = true;
  for (const auto& peer : peers_) {
    if (!peer) continue;
    peer->progress();
    all &= peer->has_been_emptied();
  }
  return all;
}

}  // namespace stretto
