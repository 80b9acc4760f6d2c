#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/gpu/gpu_links.hpp"
#include "transport/gpu/side_copies.hpp"
#include "transport/gpu/staging.hpp"
#include "transport/links.hpp"

namespace stretto {

// Messages between GPUs in blocks: for ranks that NCCL does not connect, such as processes that share one GPU. The staging
// decides where the blocks lie, and how they get to the other rank.
//
// The thread that calls exchange() carries the messages: it waits until the stream has reached the exchange, copies to
// blocks and from blocks in streams of its own, and returns when all messages have arrived. Messages of one direction and
// peer go in order, all others in parallel. So all members must issue the operations of all communicators that they share in
// one consistent order. No stream ever waits for the host: it would block all work that CUDA puts behind it (another stream
// in the same hardware queue, a kernel's first launch that loads its code, memory that is freed), even the copies that it
// waits for.
//
// The time until the stream reaches the exchange counts as waiting, also for STRETTO_TIMEOUT.
//
// Not supported in a CUDA graph: exchange() throws Error(unavailable), because no thread would carry the messages when the
// graph is launched.
class StagedLinks final : public GpuLinks {
 public:
  // links: of this communicator; they must outlive this object.
  StagedLinks(Gpu& gpu, Links& links, std::unique_ptr<Staging> staging);
  ~StagedLinks() override;  // waits until peers have taken what was sent, unless an exchange has failed
  StagedLinks(const StagedLinks&) = delete;
  StagedLinks& operator=(const StagedLinks&) = delete;

  const char* route() const override { return staging_->route(); }
  void exchange(const std::vector<GpuMessage>& messages, GpuStream stream) override;
  std::string failure() override;
  void abort() override;  // an exchange in flight throws

 private:
  enum class Look { finished, moved, at_gpu, at_peers };  // at_gpu, at_peers: it waits for the GPU, for the peers
  void wait(const std::function<Look()>& look);
  void carry(const std::vector<GpuMessage>& messages);
  void settle();
  void check_going_on();
  void note_failure(const std::string& why);

  Gpu& gpu_;
  Links& links_;
  std::unique_ptr<Staging> staging_;
  SideCopies copies_;
  GpuEvent ready_;
  std::atomic<bool> aborted_ = false;
  std::mutex mutex_;
  std::string failure_;  // under the mutex
};

}  // namespace stretto
