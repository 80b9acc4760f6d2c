#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"

// Blocks of data that go round a ring of ranks, while each rank computes with the block that it holds. They serve ring
// attention (Liu et al. 2023), where keys and values rotate, and matrix products with a divided operand. Each rank sends
// to the next rank and receives from the previous rank. In a ring of p ranks, each rank holds the block of rank - i in
// step i, for i from 0 to p-1.
namespace stretto {

// The rotating blocks, for forward and backward. A block is any number of tensors of any types, packed into one buffer,
// so that a hop is one message. There are two buffers: while the caller uses the block in one buffer, the next block
// arrives in the other. Block i+1 begins to travel when block i becomes the current block.
//
//   RingPass blocks({k, v}, group, stream);
//   do attend(q, blocks.current()[0], blocks.current()[1], blocks.source()); while (blocks.rotate());
//
// reach[s] is the number of hops that the block of rank s makes: ranks s + 1 to s + reach[s] of the ring get it, and it
// does not travel further. A causal or sparse mask of attention needs no more. All ranks must pass the same numbers, 0 to
// p-1; an empty list means p-1 for all.
//
// Each rank sends (p-1) times the bytes of the tensors, plus padding between tensors to multiples of 64 bytes (of the
// blocks that it passes on, with a shorter reach). For
// example, a ring of c ranks rotates keys and values for b * s/c tokens per rank, each with h elements of e bytes: a
// rank then sends 2 b (s/c) h (c-1) e bytes. Memory: twice the bytes of the tensors. All ranks must pass tensors of the
// same shapes and types, and call rotate() equally often. Only one thread may use an object. With Stream::inline_(),
// every hop is complete when the constructor or rotate() returns: the values are the same, without overlap. The object
// may be destroyed at any time, because a hop in flight keeps its buffers alive. After an exception, the object must not
// be used again.
class STRETTO_API RingPass {
 public:
  // Copies the tensors and starts the first hop. Collective.
  RingPass(const std::vector<Tensor>& tensors, const Communicator& group, const Stream& stream,
           const char* tag = "ring pass", std::vector<int> reach = {});

  // Read-only views of the current block. They are valid until the next rotate(), after which the memory is overwritten.
  const std::vector<Tensor>& current() const { return blocks_[place_]; }
  int source() const;  // the rank that owns the current block
  // Waits for the next block that reaches this rank, makes it the current block, and starts the next hop. If there is no
  // next block, returns false. Without a shorter reach, the block of rank + 1 then stays the current block.
  bool rotate();

 private:
  void start_hop();
  bool arrives(int hop) const;  // whether a block reaches this rank in its hop of that number, counted from 1

  Communicator group_;
  Stream stream_;
  const char* tag_;
  std::vector<int> reach_;
  std::array<Tensor, 2> buffers_;
  std::array<std::vector<Tensor>, 2> blocks_;  // views of buffers_
  std::size_t place_ = 0;                      // index of the current block's buffer
  int hops_ = 0;                               // number of hops made so far
  Work hop_;                                   // the hop in flight
};

// Sums that travel after the blocks of a RingPass, for backward. Each rank adds its contribution for the current block
// (to dK and dV) to the sum of the previous ranks, and passes the sum on. A rank's contribution for its own block never
// travels: the sum for that block begins at the next rank, and arrives after p-1 hops. A RingSum has its own buffers.
// Give the RingSum its own communicator (Communicator::duplicate) and its own stream; blocks then never wait for sums.
//
//   RingPass blocks({k, v}, group, stream);
//   RingSum sums({dk, dv}, group2, stream2);
//   attend_backward(k, v, ..., sums.own()[0], sums.own()[1]);
//   while (blocks.rotate()) {
//     attend_backward(blocks.current()[0], blocks.current()[1], ..., sums.contribution()[0], sums.contribution()[1]);
//     sums.pass();
//   }
//   const auto dkv = sums.finish();
//
// While a sum travels, the rank computes its contribution to the next sum. In the code above, the last hop is not
// hidden. To hide it, leave a part of the work on the rank's own block for the end, such as the second half of its keys:
//
//   attend_backward(k1, v1, ..., dk1, dv1);     // views of the first half of k and v, and of sums.own()
//   while (blocks.rotate()) { ... }             // as above
//   attend_backward(k2, v2, ..., dk2, dv2);     // the second half, while the sum travels home
//   const auto dkv = sums.finish();
//
// The sum for the block of rank r adds the contributions of ranks r+1, r+2, and so on round the ring to r-1, and then
// the contribution of rank r. With a shorter reach, it adds those of ranks r+1 to r+reach[r], of which the last sends the
// sum home directly. Each rank sends (p-1) times the bytes of the tensors, plus padding as in RingPass. Memory:
// ring_sum_buffers() times the bytes of the tensors. The thread, stream and error rules are those of RingPass.
class STRETTO_API RingSum {
 public:
  // Uses only the shapes and types of the tensors in `like`; with `dtype`, the sums have that type instead. Does not
  // communicate.
  RingSum(const std::vector<Tensor>& like, const Communicator& group, const Stream& stream, const char* tag = "ring sum",
          std::vector<int> reach = {}, std::optional<DType> dtype = std::nullopt);

  // Before finish(), the caller must write this rank's contribution for its own block to these tensors. The initial
  // contents are unspecified, so the caller must write every element.
  const std::vector<Tensor>& own() const { return own_; }
  // Before each pass(), the caller must write this rank's contribution for the current block of another rank to these
  // tensors. The blocks come in the order of RingPass: those of rank - 1, rank - 2, and so on to rank + 1 that reach this
  // rank. The initial contents are unspecified, so the caller must write every element. The tensors are valid until
  // pass().
  const std::vector<Tensor>& contribution() const;
  // Waits for the sum of the previous ranks, adds contribution() to it, and sends the result to the next rank, or home.
  // Call pass() once for each block of another rank that reaches this one.
  void pass();
  // Waits for the sum for this rank's own block, adds it to own(), and returns own(). Call finish() after the last
  // pass(). Further calls return the same tensors.
  const std::vector<Tensor>& finish();

 private:
  Communicator group_;
  Stream stream_;
  const char* tag_;
  std::vector<Tensor> own_;
  std::array<Tensor, 2> buffers_;   // for contributions: one is being written, one may be in flight
  bool contributes(int hop) const;  // whether a block reaches this rank in that hop, counted from 1
  int hops_left() const;            // in which it contributes
  void start_hop(const Tensor& sum);

  std::vector<int> reach_;
  std::array<std::vector<Tensor>, 2> contributions_;
  struct Arriving {  // a sum
    Tensor buffer;
    std::vector<Tensor> tensors;
  };
  Arriving passing_, home_;  // for the next hop's block, and for the own one; one buffer if no sum follows the own one
  std::size_t place_ = 0;    // index of the contribution that is being written
  int hops_ = 0;             // number of hops begun
  bool is_home_ = false;     // whether the sum of others has been added to own_
  Work hop_, homecoming_;
};

// How many times the bytes of its tensors a RingSum on that rank of the ring holds: own(), up to two contributions and up to
// two arriving sums. Four times with the full reach; three times with two ranks; once in a group of one rank.
STRETTO_API int ring_sum_buffers(const std::vector<int>& reach, int rank);

// Returns the efficiency of causal ring attention over c ranks if each rank has one contiguous block of the sequence. In
// every step but the first, a rank computes the whole block if its queries are later than the block's keys, and
// otherwise computes nothing; all ranks wait for each other. On average, a rank computes for c/(2c-1) of the time, which
// tends to 1/2.
STRETTO_API double contiguous_causal_efficiency(int ranks);
// Returns the two chunks of the sequence that `rank` holds in balanced causal attention (zigzag; Zhu 2024, and Llama 3's
// context parallelism). The sequence is cut into 2c chunks for c ranks; rank r holds the early chunk r and the late
// chunk 2c-1-r. All ranks then have the same work in every step, so the efficiency is 1.
STRETTO_API std::array<int, 2> zigzag_chunks(int rank, int ranks);

}  // namespace stretto
