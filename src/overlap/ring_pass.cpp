#include "stretto/overlap/ring_pass.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/fail.hpp"
#include "device/memory/range.hpp"
#include "device/stream/kernel_scope.hpp"
#include "overlap/exchange.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

// Tensors that lie one behind the other in one buffer, so that one message carries them.
struct PackedTensors {
  Tensor buffer;
  std::vector<Tensor> tensors;
};

PackedTensors packed_like(const std::vector<Tensor>& like, const Communicator& group, std::optional<DType> dtype = {}) {
  constexpr std::size_t alignment = 64;
  std::vector<std::size_t> places;
  std::size_t end = 0;
  for (const Tensor& tensor : like) {
    places.push_back((end + alignment - 1) / alignment * alignment);
    end = places.back() + static_cast<std::size_t>(tensor.size()) * size_of(dtype.value_or(tensor.dtype()));
  }
  const MemoryScope buffers(MemoryKind::buffers);
  const Shape bytes{static_cast<std::int64_t>(end)};
  PackedTensors packed{group.size() > 1 ? Tensor::symmetric(bytes, DType::u8) : Tensor(bytes, DType::u8), {}};
  for (std::size_t i = 0; i < like.size(); ++i) {
    packed.tensors.push_back(packed.buffer.view(places[i], like[i].shape(), dtype.value_or(like[i].dtype())));
  }
  return packed;
}

std::vector<int> checked_reach(std::vector<int> reach, int ranks) {
  if (reach.empty()) reach.assign(static_cast<std::size_t>(ranks), ranks - 1);
  const bool fits = std::all_of(reach.begin(), reach.end(), [&](int hops) { return hops >= 0 && hops < ranks; });
  require(fits && static_cast<int>(reach.size()) == ranks,
          "Blocks of a ring of {} ranks reach [{}] hops; give {} numbers of 0 to {}.", ranks, fmt::join(reach, ", "), ranks,
          ranks - 1);
  return reach;
}

// Whether a block reaches the rank in its hop of that number, counted from 1.
bool block_arrives(const std::vector<int>& reach, int rank, int hop) {
  const int ranks = static_cast<int>(reach.size());
  return hop < ranks && reach[static_cast<std::size_t>(around(rank - hop, ranks))] >= hop;
}

// What a rank of a RingSum contributes to and receives.
struct ArrivingSums {
  std::size_t contributions = 0;
  bool passes = false, passes_later = false;  // sums of other blocks, at all and not before the own one comes home
  bool comes_home = false;
  bool share_a_buffer() const { return comes_home && passes && !passes_later; }
};
ArrivingSums arriving_sums(const std::vector<int>& reach, int rank) {
  const int own_hops = reach[static_cast<std::size_t>(rank)];
  ArrivingSums sums{.comes_home = own_hops > 0};
  for (int hop = 1; hop < static_cast<int>(reach.size()); ++hop) {
    if (!block_arrives(reach, rank, hop)) continue;
    ++sums.contributions;
    sums.passes |= hop > 1;
    sums.passes_later |= hop > 1 && hop > own_hops;
  }
  return sums;
}

void add_all(const std::vector<Tensor>& what, const std::vector<Tensor>& sums) {
  for (std::size_t i = 0; i < what.size(); ++i) kernels::add(what[i], sums[i], sums[i]);
}

}  // namespace

RingPass::RingPass(const std::vector<Tensor>& tensors, const Communicator& group, const Stream& stream, const char* tag,
                   std::vector<int> reach)
    : group_(group), stream_(stream), tag_(tag), reach_(checked_reach(std::move(reach), group.size())) {
  for (std::size_t i = 0; i < (group.size() > 1 ? buffers_.size() : 1); ++i) {
    PackedTensors packed = packed_like(tensors, group);
    buffers_[i] = std::move(packed.buffer);
    blocks_[i] = std::move(packed.tensors);
  }
  as_kernel("copy", [&] {
    for (std::size_t i = 0; i < tensors.size(); ++i) blocks_[0][i].copy_from(tensors[i]);
  });
  start_hop();
}

int RingPass::source() const { return around(group_.rank() - hops_, group_.size()); }

bool RingPass::arrives(int hop) const { return block_arrives(reach_, group_.rank(), hop); }

bool RingPass::rotate() {
  while (hops_ + 1 < group_.size()) {
    computation().wait(hop_);
    place_ = 1 - place_;
    ++hops_;
    start_hop();
    if (arrives(hops_)) return true;
  }
  return false;
}

// The current block goes on, if it is there and reaches the next rank.
void RingPass::start_hop() {
  const int ranks = group_.size(), next = hops_ + 1;
  if (next == ranks) return;
  const ProfilerRange range([&] { return tag_; });
  const bool sends = reach_[source()] >= next;
  hop_ = exchange(group_, sends ? buffers_[place_] : Tensor(), around(group_.rank() + 1, ranks),
                  arrives(next) ? buffers_[1 - place_] : Tensor(), around(group_.rank() - 1, ranks), stream_, tag_);
}

RingSum::RingSum(const std::vector<Tensor>& like, const Communicator& group, const Stream& stream, const char* tag,
                 std::vector<int> reach, std::optional<DType> dtype)
    : group_(group), stream_(stream), tag_(tag), reach_(checked_reach(std::move(reach), group.size())) {
  const MemoryScope buffers(MemoryKind::buffers);
  for (const Tensor& tensor : like) own_.emplace_back(tensor.shape(), dtype.value_or(tensor.dtype()));
  const ArrivingSums sums = arriving_sums(reach_, group.rank());
  for (std::size_t i = 0; i < std::min(sums.contributions, buffers_.size()); ++i) {
    PackedTensors packed = packed_like(like, group, dtype);
    buffers_[i] = std::move(packed.buffer);
    contributions_[i] = std::move(packed.tensors);
  }
  const auto arriving = [&] {
    PackedTensors packed = packed_like(like, group, dtype);
    return Arriving{std::move(packed.buffer), std::move(packed.tensors)};
  };
  if (sums.passes) passing_ = arriving();
  if (sums.comes_home) home_ = sums.share_a_buffer() ? passing_ : arriving();
}

int ring_sum_buffers(const std::vector<int>& reach, int rank) {
  const ArrivingSums sums = arriving_sums(reach, rank);
  const int arriving = (sums.passes ? 1 : 0) + (sums.comes_home ? 1 : 0) - (sums.share_a_buffer() ? 1 : 0);
  return 1 + static_cast<int>(std::min<std::size_t>(sums.contributions, 2)) + arriving;
}

bool RingSum::contributes(int hop) const { return block_arrives(reach_, group_.rank(), hop); }

int RingSum::hops_left() const {
  int left = 0;
  for (int hop = hops_ + 1; hop < group_.size(); ++hop) left += contributes(hop) ? 1 : 0;
  return left;
}

const std::vector<Tensor>& RingSum::contribution() const {
  require(hops_left() > 0,
          "A ring sum of {} ranks has taken all contributions to blocks of others; what concerns the own block is written "
          "to own().",
          group_.size());
  return contributions_[place_];
}

void RingSum::pass() {
  require(hops_left() > 0,
          "A ring sum of {} ranks was passed on too often: no more blocks of others are left; finish() gives the sum of the "
          "own one.",
          group_.size());
  while (!contributes(hops_ + 1)) start_hop({});
  const std::vector<Tensor>& sums = contributions_[place_];
  if (hops_ > 0) {
    computation().wait(hop_);
    add_all(passing_.tensors, sums);
  }
  start_hop(buffers_[place_]);
  place_ = 1 - place_;
}

// Passes on the sum for the block that has made so many hops, if there is one, and receives what its neighbour, and the
// last rank that the own block reaches, pass on in the same hop.
void RingSum::start_hop(const Tensor& sum) {
  const ProfilerRange range([&] { return tag_; });
  const int ranks = group_.size(), rank = group_.rank();
  const int hop = ++hops_;
  const int source = around(rank - hop, ranks);
  OperationGroup together;
  if (contributes(hop + 1)) exchange(group_, {}, rank, passing_.buffer, around(rank - 1, ranks), stream_, tag_);
  if (reach_[rank] == hop) exchange(group_, {}, rank, home_.buffer, around(rank + hop, ranks), stream_, tag_);
  if (sum) exchange(group_, sum, reach_[source] > hop ? around(rank + 1, ranks) : source, {}, rank, stream_, tag_);
  hop_ = together.end();
  if (reach_[rank] == hop) homecoming_ = hop_;
}

const std::vector<Tensor>& RingSum::finish() {
  require(hops_left() == 0,
          "A ring sum of {} ranks still takes contributions to {} blocks; call pass() for each block of another rank before "
          "the own one's sum is home.",
          group_.size(), hops_left());
  if (is_home_) return own_;
  while (hops_ + 1 < group_.size()) start_hop({});
  is_home_ = true;
  if (reach_[group_.rank()] == 0) return own_;
  computation().wait(homecoming_);
  add_all(home_.tensors, own_);
  computation().wait(hop_);
  return own_;
}

double contiguous_causal_efficiency(int ranks) {
  require(ranks >= 1, "A ring has no {} ranks.", ranks);
  return static_cast<double>(ranks) / (2 * ranks - 1);
}

std::array<int, 2> zigzag_chunks(int rank, int ranks) {
  require(rank >= 0 && rank < ranks, "Rank {} is outside a ring of {}.", rank, ranks);
  return {rank, 2 * ranks - 1 - rank};
}

}  // namespace stretto
