#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "transport/gpu/gpu_links.hpp"

namespace stretto {

// The board through which the members of one communicator, threads of one process, copy from each other.
class CopyBoard;

// The place of this member in its communicator.
struct CopyMember {
  int rank = 0;                 // among the members
  std::vector<int> job_ranks;   // of the members, for error messages
  double timeout = 600;         // seconds that a peer may be late
  std::function<void()> check;  // throws when a rank is lost; called while waiting
};

// Links between members that are threads of one process: a receiver copies from the sender's memory. NCCL does not do that
// for ranks that share one GPU.
//
// A sender posts the address of its data and an event after which the data are ready. The receiver's stream waits for that
// event, copies, and records another one, for which the sender's stream waits. Streams are made to wait only for events that
// have been recorded, so the GPU can always go on. Only the calling thread blocks: until the peers have made their calls,
// never for the GPU. So all members must issue the operations of all communicators that they share in one consistent order:
// if one thread calls A before B, and another one B before A, both wait until the timeout.
//
// Not supported in a CUDA graph: exchange() throws Error(unavailable). Two ranks' captured operations would have to wait for
// each other, and CUDA's graphs cannot.
class PeerCopies final : public GpuLinks {
 public:
  // The board must have been made for as many members as the communicator has.
  PeerCopies(Gpu& gpu, std::shared_ptr<CopyBoard> board, CopyMember member);
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
  CopyMember member_;
  GpuEvent ready_;  // recorded anew at each exchange, when all peers have made their streams wait for the last one
};

std::shared_ptr<CopyBoard> make_copy_board(int members);

// One member makes the board and offers it: the number returned identifies it. Each of the `takers` other members takes it
// once, by that number. take_copy_board() returns null if no board was offered under the number.
std::uint64_t offer_copy_board(std::shared_ptr<CopyBoard> board, int takers);
std::shared_ptr<CopyBoard> take_copy_board(std::uint64_t number);

}  // namespace stretto
