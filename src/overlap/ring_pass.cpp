#include "stretto/overlap/ring_pass.hpp"

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

PackedTensors packed_like(const std::vector<Tensor>& like, const Communicator& group) {
  constexpr std::size_t alignment = 64;
  std::vector<std::size_t> places;
  std::size_t end = 0;
  for (const Tensor& tensor : like) {
    places.push_back((end + alignment - 1) / alignment * alignment);
    end = places.back() + tensor.bytes();
  }
  const Shape bytes{static_cast<std::int64_t>(end)};
  PackedTensors packed{group.size() > 1 ? Tensor::symmetric(bytes, DType::u8) : Tensor(bytes, DType::u8), {}};
  for (std::size_t i = 0; i < like.size(); ++i) {
    packed.tensors.push_back(packed.buffer.view(places[i], like[i].shape(), like[i].dtype()));
  }
  return packed;
}

Work hop(const Communicator& group, const Tensor& out, const Tensor& in, const Stream& stream, const std::string& tag) {
  const ProfilerRange range([&] { return tag; });
  const int ranks = group.size();
  return exchange(group, out, around(group.rank() + 1, ranks), in, around(group.rank() - 1, ranks), stream, tag);
}

void add_all(const std::vector<Tensor>& what, const std::vector<Tensor>& sums) {
  for (std::size_t i = 0; i < what.size(); ++i) kernels::add(what[i], sums[i], sums[i]);
}

}  // namespace

RingPass::RingPass(const std::vector<Tensor>& tensors, const Communicator& group, const Stream& stream, std::string tag)
    : group_(group), stream_(stream), tag_(std::move(tag)) {
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

bool RingPass::rotate() {
  if (hops_ + 1 == group_.size()) return false;
  computation().wait(hop_);
  place_ = 1 - place_;
  ++hops_;
  start_hop();
  return true;
}

void RingPass::start_hop() {
  if (hops_ + 1 < group_.size()) hop_ = hop(group_, buffers_[place_], buffers_[1 - place_], stream_, tag_);
}

RingSum::RingSum(const std::vector<Tensor>& like, const Communicator& group, const Stream& stream, std::string tag)
    : group_(group), stream_(stream), tag_(std::move(tag)) {
  for (const Tensor& tensor : like) own_.emplace_back(tensor.shape(), tensor.dtype());
  const auto others = static_cast<std::size_t>(group.size() - 1);
  for (std::size_t i = 0; i < std::min(others, buffers_.size()); ++i) {
    PackedTensors packed = packed_like(like, group);
    buffers_[i] = std::move(packed.buffer);
    contributions_[i] = std::move(packed.tensors);
  }
  if (others == 0) return;
  PackedTensors packed = packed_like(like, group);
  arriving_ = std::move(packed.buffer);
  arrived_ = std::move(packed.tensors);
}

const std::vector<Tensor>& RingSum::contribution() const {
  require(hops_ + 1 < group_.size(),
          "A ring sum of {} ranks takes {} contributions to blocks of others and has them; what concerns the own block is "
          "written to own().",
          group_.size(), hops_);
  return contributions_[place_];
}

void RingSum::pass() {
  require(hops_ + 1 < group_.size(),
          "A ring sum of {} ranks was passed on {} times, and no more blocks of others are left; finish() gives the sum of "
          "the own one.",
          group_.size(), hops_);
  const std::vector<Tensor>& sums = contributions_[place_];
  if (hops_ > 0) {
    computation().wait(hop_);
    add_all(arrived_, sums);
  }
  hop_ = hop(group_, buffers_[place_], arriving_, stream_, tag_);
  place_ = 1 - place_;
  ++hops_;
}

const std::vector<Tensor>& RingSum::finish() {
  require(hops_ + 1 == group_.size(),
          "A ring sum of {} ranks was passed on {} times; the own block's is home after {}: call pass() for each block of "
          "another rank.",
          group_.size(), hops_, group_.size() - 1);
  if (!home_) {
    computation().wait(hop_);
    add_all(arrived_, own_);
    home_ = true;
  }
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
