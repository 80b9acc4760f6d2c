#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "transport/gpu/gpu_links.hpp"

namespace stretto {

// Where the members of one communicator, threads of one process, meet to copy from each other.
class CopyBoard;

// Members that are threads of one process: a receiver copies from the sender's memory. NCCL does not do that for ranks that
// share one GPU.
//
// A sender posts where its data lies and an event behind which it is ready; the receiver's stream waits for that event,
// copies, and records another one, for which the sender's stream waits. Streams are made to wait only for events that have
// been recorded, so the GPU always can go on. What blocks is the calling thread: until the peers have made their calls,
// never for the GPU. So all members issue the operations of all communicators that they share in one consistent order: who
// calls A before B, while another calls B before A from one thread, waits for ever (until the timeout).
//
// Not in a graph: what two ranks capture would have to wait for each other, and CUDA's graphs cannot. exchange() throws
// Error(unavailable) then.
class PeerCopies final : public GpuLinks {
 public:
  struct Place {
    int member = 0;
    std::vector<int> job_ranks;   // of the members, for messages
    double timeout = 600;         // seconds that a peer may be late
    std::function<void()> check;  // throws when a rank is lost; called while waiting
  };
  // The board was made for as many members.
  PeerCopies(Gpu& gpu, std::shared_ptr<CopyBoard> board, Place place);
  ~PeerCopies() override;
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  const char* route() const override { return "peer copies"; }
  void exchange(const std::vector<GpuMessage>& messages, GpuStream stream) override;
  std::string failure() override;
  void abort() override;  // for all members

 private:
  Gpu& gpu_;
  std::shared_ptr<CopyBoard> board_;
  Place place_;
  GpuEvent ready_;  // recorded anew at each exchange, when all peers have made their streams wait for the last one
};

std::shared_ptr<CopyBoard> make_copy_board(int members);

// How the members find the board that one of them has made: it offers it under a number, and each of the others takes it
// once. Null: not offered.
std::uint64_t offer_copy_board(std::shared_ptr<CopyBoard> board, int takers);
std::shared_ptr<CopyBoard> take_copy_board(std::uint64_t number);

}  // namespace stretto
