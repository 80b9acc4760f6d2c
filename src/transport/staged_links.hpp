#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "device/memory.hpp"
#include "transport/gpu_links.hpp"
#include "transport/network.hpp"
#include "transport/staging.hpp"

namespace stretto {

// Messages between GPUs in blocks, which a thread copies: for ranks that NCCL does not connect, such as processes that share
// one GPU. Where the blocks lie, and how they get to the other rank, is the staging's affair.
//
// Nobody who issues an exchange waits for it. It records in the stream where its memory is ready, makes the stream wait for
// a word in pinned memory, and leaves the messages to a thread, which copies them to blocks and from blocks in streams of
// its own, and writes the word when all have arrived. (No function of the host's is put into the stream: CUDA may let one
// that waits hold up those of all other streams.) Exchanges go one after the other; the messages of one all together, those
// of each direction and peer in order. So nothing waits that NCCL would not let wait.
//
// The GPU must be able to serve these copies while a stream waits: CUDA_DEVICE_MAX_CONNECTIONS (8 unless set) says for how
// many streams of a process that is sure.
//
// Not in a graph, whose launches the thread would not see: exchange() throws Error(unavailable) then.
class StagedLinks final : public GpuLinks {
 public:
  // links: of this communicator, for longer than this.
  StagedLinks(Gpu& gpu, Links& links, std::unique_ptr<Staging> staging);
  ~StagedLinks() override;  // waits for what is under way, but not after something has gone wrong
  StagedLinks(const StagedLinks&) = delete;
  StagedLinks& operator=(const StagedLinks&) = delete;

  const char* route() const override { return staging_->route(); }
  void exchange(const std::vector<GpuMessage>& messages, GpuStream stream) override;
  bool does(const GpuCollective& /*call*/) const override { return false; }
  void perform(const GpuCollective& call, GpuStream stream) override;  // throws
  // A lost peer, say. Streams go on waiting until abort(): what is behind must learn of it first.
  std::string failure() override;
  void abort() override;

 private:
  struct Order {  // of one exchange
    GpuEvent ready = nullptr;
    GpuEvent passed = nullptr;  // behind the wait for the word
    std::vector<GpuMessage> messages;
    std::unique_ptr<GpuMemoryHold> memory;  // theirs
    std::uint32_t number = 0;               // that the word gets
  };
  GpuEvent take_event();  // under the mutex
  void work_through();
  std::optional<Order> next_order();
  void carry(const Order& order, SideCopies& copies);
  void settle();
  void wait_for(GpuEvent ready) const;
  void let_go(const Order& order);
  void let_all_go();
  void check_going_on() const;

  Gpu& gpu_;
  Links& links_;
  std::unique_ptr<Staging> staging_;
  std::byte* word_memory_;
  std::atomic<std::uint32_t>* word_;
  std::atomic<bool> aborted_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Order> orders_;
  std::deque<GpuEvent> passing_;  // streams that have been let go, and may still look at the word
  std::vector<GpuEvent> events_, free_events_;
  std::uint32_t issued_ = 0;
  bool closing_ = false;
  std::string failure_;
  std::thread thread_;
};

}  // namespace stretto
