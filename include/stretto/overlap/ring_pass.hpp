#pragma once
#include <array>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"

// Blocks that go round a ring of ranks while each rank computes with the one that it has: ring attention (Liu et al. 2023),
// whose keys and values rotate, and any product with a divided operand. A rank sends to the next one and receives from the
// one before; in step i of p it has the block of rank - i.
namespace stretto {

// Forward, and the blocks of backward. Tensors of any number and type are packed into one buffer, so that a hop is one
// message; of two buffers one is computed with while the next block comes into the other. Block i+1 begins to travel when
// block i becomes the current one.
//
//   RingPass blocks({k, v}, group, stream);
//   do attend(q, blocks.current()[0], blocks.current()[1], blocks.source()); while (blocks.rotate());
//
// Bytes sent per rank: (p-1) times those of the tensors (for keys and values of b x s/c tokens of h elements, over c ranks,
// that is 2 b (s/c) h (c-1) e), and what fills a tensor that another follows up to a multiple of 64 bytes. Memory: twice the
// tensors. All ranks give tensors of the same shapes and types and rotate equally often. One thread uses it. Given
// Stream::inline_(), every hop is made at once: the same values, nothing overlaps. It may be destroyed at any time: a hop
// under way keeps its buffers until it is done. After an exception it cannot be used again.
class STRETTO_API RingPass {
 public:
  // The tensors are copied. Collective: the first hop begins.
  RingPass(const std::vector<Tensor>& tensors, const Communicator& group, const Stream& stream,
           std::string tag = "ring pass");

  // Views, good until the next rotate(), which sees their memory overwritten. Only to be read.
  const std::vector<Tensor>& current() const { return blocks_[place_]; }
  int source() const;  // the rank whose block that is
  // Waits for the next block and makes it the current one; the one after begins to travel. False when there is none: the
  // current one is then the last, that of rank + 1, and stays.
  bool rotate();

 private:
  void start_hop();

  Communicator group_;
  Stream stream_;
  std::string tag_;
  std::array<Tensor, 2> buffers_;
  std::array<std::vector<Tensor>, 2> blocks_;  // views of them
  std::size_t place_ = 0;                      // of the current block
  int hops_ = 0;                               // made
  Work hop_;                                   // under way
};

// Backward: sums that travel behind the blocks of a RingPass. Each rank adds what it knows of the current block (of dK and
// dV) to what the ranks before have found, and passes the sum on. What a rank finds of its own block never travels: the sum
// for it begins at the next rank and is home after p-1 hops. It has buffers of its own: give it a communicator
// (Communicator::duplicate) and a stream of its own too, and the blocks never wait for the sums.
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
// While a sum is on its way, the contribution to the next is computed; the last one has nothing to hide behind here. It has
// where some of the own block is left for the end, such as the second half of its keys:
//
//   attend_backward(k1, v1, ..., dk1, dv1);     // views of the first half of k and v, and of sums.own()
//   while (blocks.rotate()) { ... }             // as above
//   attend_backward(k2, v2, ..., dk2, dv2);     // of the second half, while the sum travels home
//   const auto dkv = sums.finish();
//
// The sum for the block of rank r is added up as the contribution of rank r+1, plus that of r+2, and so on round the ring to
// r-1, and last plus that of r itself. Bytes sent per rank: (p-1) times those of the tensors, with filling as above. Memory:
// four times the tensors (own(), two contributions and what arrives); three times over two ranks, once in a group of one.
// Rules as for RingPass.
class STRETTO_API RingSum {
 public:
  // Only the shapes and types of the tensors count. No communication.
  RingSum(const std::vector<Tensor>& like, const Communicator& group, const Stream& stream, std::string tag = "ring sum");

  // Where this rank writes its part of the sum for its own block, all of it, at any time before finish(): the contents are
  // unspecified before.
  const std::vector<Tensor>& own() const { return own_; }
  // Where it writes its part of the sum for the current block of another rank: in turn rank - 1, rank - 2 and so on to
  // rank + 1, as RingPass brings them. All of it: the contents are unspecified before. Good until pass(); there are p-1.
  const std::vector<Tensor>& contribution() const;
  // Adds it to what the ranks before have found, which it waits for, and sends it on. To be called p-1 times: for every
  // block but the own one.
  void pass();
  // Waits for the sum of this rank's own block and adds it to own(), which it gives: the tensors stay good. After p-1 times
  // pass(). Called again, it gives the same.
  const std::vector<Tensor>& finish();

 private:
  Communicator group_;
  Stream stream_;
  std::string tag_;
  std::vector<Tensor> own_;
  std::array<Tensor, 2> buffers_;  // of contributions: one is written, one may be on its way
  std::array<std::vector<Tensor>, 2> contributions_;
  Tensor arriving_;
  std::vector<Tensor> arrived_;
  std::size_t place_ = 0;  // of the contribution that is written
  int hops_ = 0;           // begun
  bool home_ = false;      // what came home has been added to own_
  Work hop_;
};

// Causal attention over a sequence that is cut into as many contiguous blocks as there are ranks: in every step but the
// first, the ranks whose block is newer compute all of it and the others nothing, and all wait for each other. This is the
// part of the time in which a rank computes: c/(2c-1), which goes to a half.
STRETTO_API double contiguous_causal_efficiency(int ranks);
// Cut into twice as many chunks, of which a rank holds an early and a late one, all have the same to do in every step:
// efficiency 1 (zigzag; Zhu 2024, and Llama 3's context parallelism). Of 2 p chunks, rank r holds r and 2p-1-r.
STRETTO_API std::array<int, 2> zigzag_chunks(int rank, int ranks);

}  // namespace stretto
