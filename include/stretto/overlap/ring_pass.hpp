#pragma once
#include <array>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"

// Blocks that go round a ring of ranks while each rank computes with the block that it has. For ring attention (Liu et
// al. 2023), where keys and values rotate, and for products with a divided operand. A rank sends to the next one and
// receives from the previous one; in step i of p it has the block of rank - i.
namespace stretto {

// The blocks, for forward and backward. Tensors, of any number and types, are packed into one buffer, so that a hop is
// one message. There are two buffers: while the block in one is used, the next block arrives in the other. Block i+1
// begins to travel when block i becomes the current one.
//
//   RingPass blocks({k, v}, group, stream);
//   do attend(q, blocks.current()[0], blocks.current()[1], blocks.source()); while (blocks.rotate());
//
// Bytes sent per rank: (p-1) times those of the tensors, plus padding between tensors to multiples of 64 bytes. (For
// keys and values of b x s/c tokens of h elements of e bytes, over c ranks: 2 b (s/c) h (c-1) e.) Memory: twice the
// tensors. All ranks must give tensors of the same shapes and types, and rotate equally often. Only one thread may use
// an object. With Stream::inline_() every hop is made at once: the same values without overlap. The object may be
// destroyed at any time: a hop in flight keeps its buffers alive. After an exception the object cannot be used again.
class STRETTO_API RingPass {
 public:
  // Copies the tensors and starts the first hop. Collective.
  RingPass(const std::vector<Tensor>& tensors, const Communicator& group, const Stream& stream,
           std::string tag = "ring pass");

  // Views of the current block, for reading only. They are valid until the next rotate(), after which their memory is
  // overwritten.
  const std::vector<Tensor>& current() const { return blocks_[place_]; }
  int source() const;  // the rank of the current block
  // Waits for the next block, makes it the current one, and starts the next hop. Returns false if there is no next
  // block; the current block, that of rank + 1, then stays.
  bool rotate();

 private:
  void start_hop();

  Communicator group_;
  Stream stream_;
  std::string tag_;
  std::array<Tensor, 2> buffers_;
  std::array<std::vector<Tensor>, 2> blocks_;  // views of buffers_
  std::size_t place_ = 0;                      // index of the current block's buffer
  int hops_ = 0;                               // number of hops made so far
  Work hop_;                                   // the hop in flight
};

// Sums that travel after the blocks of a RingPass, for backward. Each rank adds its contribution for the current block
// (to dK and dV) to the sum of the ranks before, and passes the sum on. A rank's contribution for its own block never
// travels: the sum for that block begins at the next rank and arrives after p-1 hops. A RingSum has its own buffers.
// With its own communicator (Communicator::duplicate) and its own stream, blocks never wait for sums.
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
// While a sum travels, the rank computes its contribution to the next one. Above, the last hop is not hidden. It is
// hidden if a part of the own block's work is left for the end, such as the second half of its keys:
//
//   attend_backward(k1, v1, ..., dk1, dv1);     // views of the first half of k and v, and of sums.own()
//   while (blocks.rotate()) { ... }             // as above
//   attend_backward(k2, v2, ..., dk2, dv2);     // the second half, while the sum travels home
//   const auto dkv = sums.finish();
//
// The sum for the block of rank r adds the contributions of rank r+1, r+2, and so on round the ring to r-1, and last
// that of r. Bytes sent per rank: (p-1) times those of the tensors, plus padding as above. Memory: four times the
// tensors (own(), two contributions and the arriving sum); three times with two ranks, once in a group of one. Thread,
// stream and error rules are those of RingPass.
class STRETTO_API RingSum {
 public:
  // Only the shapes and types of the tensors are used. No communication.
  RingSum(const std::vector<Tensor>& like, const Communicator& group, const Stream& stream, std::string tag = "ring sum");

  // The caller writes this rank's contribution for its own block here, before finish(). All of it must be written: the
  // initial contents are unspecified.
  const std::vector<Tensor>& own() const { return own_; }
  // The caller writes this rank's contribution for the current block of another rank here, for p-1 blocks in turn: of
  // rank - 1, rank - 2, and so on to rank + 1, as RingPass brings them. All of it must be written: the initial contents
  // are unspecified. Valid until pass().
  const std::vector<Tensor>& contribution() const;
  // Waits for the sum of the ranks before, adds the contribution to it, and sends it on. Call it p-1 times: once for
  // each block of another rank.
  void pass();
  // Waits for the sum of this rank's own block, adds it to own(), and returns own(). Call it after p-1 calls of pass().
  // Further calls return the same.
  const std::vector<Tensor>& finish();

 private:
  Communicator group_;
  Stream stream_;
  std::string tag_;
  std::vector<Tensor> own_;
  std::array<Tensor, 2> buffers_;  // for contributions: one is being written, one may be travelling
  std::array<std::vector<Tensor>, 2> contributions_;
  Tensor arriving_;
  std::vector<Tensor> arrived_;
  std::size_t place_ = 0;  // index of the contribution that is being written
  int hops_ = 0;           // number of hops begun
  bool home_ = false;      // the sum that came home has been added to own_
  Work hop_;
};

// The efficiency of causal ring attention over c ranks if the sequence is cut into one contiguous block per rank. In
// every step but the first, ranks whose queries are later than the current block's keys compute all of it, the others
// compute nothing, and all wait for each other. So a rank computes for c/(2c-1) of the time, which tends to 1/2.
STRETTO_API double contiguous_causal_efficiency(int ranks);
// Returns the two chunks that `rank` holds if causal attention is balanced (zigzag; Zhu 2024, and Llama 3's context
// parallelism). The sequence is cut into 2c chunks for c ranks; rank r holds the early chunk r and the late chunk 2c-1-r.
// All ranks then have the same work in every step: the efficiency is 1.
STRETTO_API std::array<int, 2> zigzag_chunks(int rank, int ranks);

}  // namespace stretto
