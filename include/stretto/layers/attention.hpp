#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "stretto/kernels.hpp"
#include "stretto/layers/sequence.hpp"
#include "stretto/overlap/ring_pass.hpp"

// Attention over sequences whose tokens may lie on several ranks. A core is the only place that knows how sequences are
// divided: blocks, pipelines and ZeRO do not. All cores compute causal attention under a mask, scaled by 1/sqrt(head_size).
// Tokens are rows, [batch * rows, ...], where each of the batch's sequences has `rows` of its tokens here.
namespace stretto {

// A mask as users write it: "dense", or "window:W", "strided:S" and "global:G", joined by +, as in "global:16+window:256"
// (kernels::AttentionMask; Child et al. 2019). Throws Error(invalid_argument) in one sentence.
STRETTO_API kernels::AttentionMask attention_mask_from_text(const std::string& text);
// The text from which attention_mask_from_text() makes this causal mask.
STRETTO_API std::string to_text(const kernels::AttentionMask& mask);

// The queries, keys and values of tokens, or their gradients. They may lie in one tensor or in several.
struct QueriesKeysValues {
  kernels::TokenHeads q, k, v;
};

class STRETTO_API AttentionCore {
 public:
  // Sizes on this rank, and where documents begin. Each head of keys and values serves heads / kv_heads heads of queries
  // that follow each other (grouped heads; Ainslie et al. 2023).
  struct Shape {
    std::int64_t batch = 0, rows = 0, heads = 0, kv_heads = 0, head_size = 0;
    // Where documents follow each other in a sequence: i32, the position in the whole sequence at which the document of each
    // token begins, for all tokens that the ranks of a ulysses group have together, sequence after sequence. Tokens see none
    // before it. Empty: a sequence is one document.
    Tensor starts = {};
    const std::int32_t* starts_data() const { return starts ? starts.data<std::int32_t>() : nullptr; }
  };
  // forward() fills it for backward(); the caller keeps it between the two.
  struct Saved {
    Shape shape;
    QueriesKeysValues of;
    Tensor attended, log_sum_exp;
    std::vector<Saved> pieces;  // UlyssesAttention: what its inner core needs for each piece, instead of the tensors
  };
  AttentionCore() = default;
  virtual ~AttentionCore() = default;
  AttentionCore(const AttentionCore&) = delete;
  AttentionCore& operator=(const AttentionCore&) = delete;

  // Returns [batch * rows, heads * head_size]. Collective over the ranks that hold tokens of the same sequences.
  virtual Tensor forward(const Shape& shape, const QueriesKeysValues& of, Saved& saved) const = 0;
  // Writes the gradients of queries, keys and values for that of the result. Collective likewise.
  virtual void backward(const Tensor& dattended, const Saved& saved, const QueriesKeysValues& gradients) const = 0;
};

// Queries, keys and values packed into rows of (heads + 2 kv_heads) * head_size columns, as one product makes them: equal
// parts of kv_heads heads. The first heads / kv_heads parts are queries, of which each has one head of each group; then come
// the keys, and the values. A division of every part over ranks keeps groups together.
STRETTO_API QueriesKeysValues packed_heads(const AttentionCore::Shape& shape, const Tensor& packed);

// Whole sequences on each rank.
class STRETTO_API LocalAttention final : public AttentionCore {
 public:
  explicit LocalAttention(kernels::AttentionMask mask = {}) : mask_(mask) {}
  Tensor forward(const Shape& shape, const QueriesKeysValues& of, Saved& saved) const override;
  void backward(const Tensor& dattended, const Saved& saved, const QueriesKeysValues& gradients) const override;

 private:
  kernels::AttentionMask mask_;
};

// How many hops the block of each rank of a ring makes (RingPass), where each rank has `rows` tokens of a sequence: as far
// as some query sees a key of it.
STRETTO_API std::vector<int> ring_reach(const SequenceDivision& division, const kernels::AttentionMask& mask,
                                        std::int64_t rows);
// Whether all blocks make all hops of their ring.
STRETTO_API bool makes_all_hops(const std::vector<int>& reach);

// Ring attention (Liu et al. 2023): each of c ranks has 1/c of every sequence. Keys and values rotate while a rank attends
// to the block at hand, in both passes, and their gradients follow and come home (RingPass, RingSum). Blocks that the mask
// hides from all queries of a rank are not computed, and travel only as far as somebody sees them. Forward sends
// 2 b (s/c) h (c-1) e bytes a rank where no hop is left out, for keys and values of h = kv_heads * head_size elements of e
// bytes; backward sends that again, and 2 b (s/c) h (c-1) gradients in the accumulator type.
class STRETTO_API RingAttention final : public AttentionCore {
 public:
  // `division` says where the ring's ranks hold the tokens; its ulysses ranks count as one. Collective over the ring.
  RingAttention(const Communicator& ring, const SequenceDivision& division, kernels::AttentionMask mask, bool overlap);
  Tensor forward(const Shape& shape, const QueriesKeysValues& of, Saved& saved) const override;
  void backward(const Tensor& dattended, const Saved& saved, const QueriesKeysValues& gradients) const override;

 private:
  kernels::AttentionBlock block_of(const Shape& shape, int source) const;

  Communicator ring_, sums_;
  Stream blocks_stream_, sums_stream_;
  SequenceDivision division_;
  kernels::AttentionMask mask_;
};

// DeepSpeed-Ulysses (Jacobs et al. 2023): each of u ranks has 1/u of every sequence, and gets all of its tokens for 1/u of
// the heads by an all-to-all; another one brings the result back. Forward sends (2 + 2 kv_heads/heads) b (s/u) h (u-1)/u e
// bytes a rank, and backward the same: groups of heads stay together. `inner` attends to the tokens of the u ranks together:
// LocalAttention, or RingAttention for both at once (USP; Fang & Zhao 2024).
//
// The heads of a rank go in pieces: while `inner` attends to one piece, the next one arrives and the results of the last
// one travel back. With k pieces, 1/k of the communication is exposed where attention takes longer; with one head a rank,
// all of it. The number of pieces changes no bit. Memory: attention_cost().buffers.
class STRETTO_API UlyssesAttention final : public AttentionCore {
 public:
  static constexpr int usual_pieces = 4;
  // pieces: at most so many, and at most the heads of keys and values of a rank; 1 or more.
  UlyssesAttention(const Communicator& group, std::shared_ptr<const AttentionCore> inner, const Stream& stream,
                   int pieces = usual_pieces);
  // Throws Error(invalid_argument) if shape.kv_heads is no multiple of the group's size.
  Tensor forward(const Shape& shape, const QueriesKeysValues& of, Saved& saved) const override;
  void backward(const Tensor& dattended, const Saved& saved, const QueriesKeysValues& gradients) const override;

 private:
  Communicator group_;
  std::shared_ptr<const AttentionCore> inner_;
  Stream stream_;
  int pieces_;
};

}  // namespace stretto
