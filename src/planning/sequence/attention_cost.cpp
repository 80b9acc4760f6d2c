#include "stretto/planning/attention_cost.hpp"

#include <algorithm>
#include <numeric>

#include "core/fail.hpp"
#include "planning/sequence/attention_time.hpp"
#include "stretto/layers/decoder_shape.hpp"

namespace stretto {
namespace {

// The columns of queries that a rank attends with.
std::int64_t width_of(const DividedAttention& attention) {
  return attention.hidden / attention.tensor / attention.division.ulysses;
}
std::int64_t key_width_of(const DividedAttention& attention) {
  return attention.hidden / attention.heads * attention.groups_of_rank() / attention.division.ulysses;
}

std::vector<int> reach_of(const DividedAttention& attention) {
  return ring_reach(attention.division, attention.mask, attention.sequence / attention.division.ring);
}

AttentionBytes ring_bytes(const DividedAttention& attention, const std::vector<int>& reach, int ring_rank) {
  const int ranks = attention.division.ring;
  const RingBlock block = ring_block(attention, key_width_of(attention));
  // In hop i a rank passes on the block that has made i - 1 hops, and then the sum for the one that has made i.
  std::int64_t blocks = 0, sums = 0;
  for (int hop = 1; hop < ranks; ++hop) {
    blocks += reach[static_cast<std::size_t>((ring_rank + ranks - hop + 1) % ranks)] >= hop ? 1 : 0;
    sums += reach[static_cast<std::size_t>((ring_rank + ranks - hop) % ranks)] >= hop ? 1 : 0;
  }
  return {blocks * block.bytes, blocks * block.bytes + sums * block.gradient_bytes};
}

// The heads of keys and values of a rank, as Ulysses exchanges them with their queries. The first piece is one of the
// largest.
std::vector<Share> pieces_of_groups(const DividedAttention& attention, int pieces) {
  const std::int64_t groups = attention.groups_of_rank() / attention.division.ulysses;
  const int count = attention.division.ulysses == 1 ? 1 : static_cast<int>(std::min<std::int64_t>(pieces, groups));
  std::vector<Share> result;
  result.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) result.push_back(share_of(groups, count, i));
  return result;
}

}  // namespace

RingBlock ring_block(const DividedAttention& attention, std::int64_t width) {
  const std::int64_t elements = 2 * attention.batch * (attention.sequence / attention.division.ring) * width;
  return {elements * static_cast<std::int64_t>(size_of(attention.dtype)),
          elements * static_cast<std::int64_t>(size_of(kernels::accumulator(attention.dtype)))};
}

void DividedAttention::check() const {
  DecoderShape{.hidden = hidden, .heads = heads, .kv_heads = kv_heads}.filled().check_block(tensor, division.ulysses);
  division.check(sequence);
}

AttentionBytes ring_bytes(const DividedAttention& attention, int ring_rank) {
  return ring_bytes(attention, reach_of(attention), ring_rank);
}

AttentionBytes ulysses_bytes(const DividedAttention& attention) {
  const int ranks = attention.division.ulysses;
  const std::int64_t rows = attention.batch * attention.division.rows(attention.sequence);
  const std::int64_t elements = 2 * rows * (width_of(attention) + key_width_of(attention)) * (ranks - 1);
  const std::int64_t bytes = elements * static_cast<std::int64_t>(size_of(attention.dtype));
  return {bytes, bytes};
}

std::int64_t AttentionWork::most() const { return *std::ranges::max_element(of_rank); }
std::int64_t AttentionWork::all() const { return std::accumulate(of_rank.begin(), of_rank.end(), std::int64_t{0}); }

double AttentionWork::balance() const {
  const auto in_step = static_cast<double>(std::accumulate(most_in_hop.begin(), most_in_hop.end(), std::int64_t{0}));
  return static_cast<double>(all()) / static_cast<double>(of_rank.size()) / in_step;
}

AttentionWork attention_work(const SequenceDivision& division, const kernels::AttentionMask& mask, std::int64_t sequence) {
  const int ranks = division.ring;
  std::vector<kernels::TokenRange> tokens;
  tokens.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    tokens.push_back({division.of_ring_rank(sequence, rank), 0, sequence / ranks});
  }
  const auto count = static_cast<std::size_t>(ranks);
  AttentionWork work{std::vector<std::int64_t>(count), std::vector<std::int64_t>(count)};
  for (std::size_t hop = 0; hop < count; ++hop) {
    for (std::size_t rank = 0; rank < count; ++rank) {
      const std::int64_t pairs = mask.pairs(tokens[rank], tokens[(rank + count - hop) % count]);
      work.of_rank[rank] += pairs;
      work.most_in_hop[hop] = std::max(work.most_in_hop[hop], pairs);
    }
  }
  return work;
}

AttentionCost attention_cost(const DividedAttention& attention, const AttentionMachine* machine, int pieces) {
  attention.check();
  const SequenceDivision& division = attention.division;
  const AttentionWork work = attention_work(division, attention.mask, attention.sequence);
  const auto statistic = static_cast<std::int64_t>(size_of(kernels::accumulator(attention.dtype)));
  const std::int64_t width = width_of(attention);
  const std::int64_t rows = attention.batch * division.rows(attention.sequence);
  const std::int64_t row = attention.hidden / attention.tensor * static_cast<std::int64_t>(size_of(attention.dtype));
  AttentionCost cost;
  cost.balance = work.balance();
  const std::int64_t key_row = row * attention.groups_of_rank() * attention.tensor / attention.heads;
  cost.kept = rows * (2 * row + 2 * key_row + attention.heads / attention.tensor * statistic);
  cost.result_again = division.ulysses > 1 ? rows * row : 0;
  const std::vector<int> reach = reach_of(attention);
  for (int rank = 0; rank < division.ring; ++rank) {
    const AttentionBytes sent = ring_bytes(attention, reach, rank);
    cost.forward.ring_bytes = std::max(cost.forward.ring_bytes, sent.forward);
    cost.backward.ring_bytes = std::max(cost.backward.ring_bytes, sent.backward);
  }
  const AttentionBytes exchanged = ulysses_bytes(attention);
  cost.forward.ulysses_bytes = exchanged.forward;
  cost.backward.ulysses_bytes = exchanged.backward;
  const double flops = static_cast<double>(work.most()) * static_cast<double>(attention.batch) * static_cast<double>(width);
  cost.forward.flops = attention_forward_flops * flops;
  cost.backward.flops = attention_backward_flops * flops;
  const std::vector<Share> groups = pieces_of_groups(attention, pieces);
  const std::int64_t piece_width = groups.front().count * (attention.hidden / attention.heads);  // of keys
  if (division.ring > 1) {
    const RingBlock block = ring_block(attention, piece_width);
    int sums = 0;
    for (int rank = 0; rank < division.ring; ++rank) sums = std::max(sums, ring_sum_buffers(reach, rank));
    cost.buffers = 2 * block.bytes + sums * block.gradient_bytes;
  }
  if (division.ulysses > 1) {
    const auto count = static_cast<std::int64_t>(std::min<std::size_t>(groups.size(), 3));
    const std::int64_t keys = rows * division.ulysses * piece_width * static_cast<std::int64_t>(size_of(attention.dtype));
    const std::int64_t result = keys * attention.heads / attention.groups(), gradients = result + 2 * keys;
    // Without a ring, the most when a piece has just left; with one, while a piece is attended to.
    if (division.ring == 1) {
      cost.buffers += 2 * gradients + (count - 1) * result;
    } else if (count > 1) {
      cost.buffers += 2 * gradients + (count - 2) * result;
    }
  }
  if (machine == nullptr) return cost;
  AttentionClock clock(attention, work, reach, *machine, groups);
  clock.time_forward(cost.forward);
  clock.time_backward(cost.backward);
  return cost;
}

}  // namespace stretto
