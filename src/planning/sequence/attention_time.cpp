#include "planning/sequence/attention_time.hpp"

#include <algorithm>

#include "core/fail.hpp"

namespace stretto {

AttentionClock::AttentionClock(const DividedAttention& attention, const AttentionWork& work, const std::vector<int>& reach,
                               const AttentionMachine& machine, const std::vector<Share>& pieces)
    : attention_(attention),
      work_(work),
      machine_(machine),
      hops_(*std::ranges::max_element(reach)),
      halves_(makes_all_hops(reach)),
      ring_{attention.division.ring, attention.division.ulysses * attention.tensor},
      ulysses_{attention.division.ulysses, attention.tensor},
      costs_(machine.cluster),
      share_links_((costs_.place(ring_).nodes() > 1) == (costs_.place(ulysses_).nodes() > 1)),
      pieces_(pieces) {
  require(machine.flops_per_second > 0, "Attention takes no time at {} operations a second; give a positive speed.",
          machine.flops_per_second);
}

void AttentionClock::time_forward(AttentionPass& pass) {
  time({.flops = attention_forward_flops, .has_sums = false, .keys_in = true, .keys_out = false}, pass);
}

void AttentionClock::time_backward(AttentionPass& pass) {
  time({.flops = attention_backward_flops, .has_sums = true, .keys_in = false, .keys_out = true}, pass);
}

// The attention of some heads of keys and values, with their queries.
AttentionClock::RingTime AttentionClock::ring(const Kind& kind, std::int64_t groups) const {
  const RingBlock block = ring_block(attention_, key_width(groups));
  const double seconds_a_pair =
      kind.flops * static_cast<double>(attention_.batch) * static_cast<double>(width(groups)) / machine_.flops_per_second;
  RingTime result;
  const auto step = [&](double computing, bool block_travels, bool sum_travels) {
    const double travelling =
        costs_.hop_seconds(ring_, (block_travels ? 1 : 0) + (sum_travels ? 1 : 0),
                           (block_travels ? block.bytes : 0) + (sum_travels ? block.gradient_bytes : 0));
    result.seconds += std::max(computing, travelling);
    result.computing += computing;
    result.travelling += travelling;
  };
  const auto computing = [&](int hop) {
    return seconds_a_pair * static_cast<double>(work_.most_in_hop[static_cast<std::size_t>(hop)]);
  };
  const bool halves = kind.has_sums && halves_ && hops_ > 0;  // of the heads; the first one has more of an odd number
  const std::int64_t first_groups = halves ? (groups + 1) / 2 : groups;
  const double first_part = static_cast<double>(first_groups) / static_cast<double>(groups);
  step(first_part * computing(0), hops_ > 0, false);
  for (int hop = 1; hop <= hops_; ++hop) step(computing(hop), hop < hops_, kind.has_sums && hop >= 2);
  if (kind.has_sums && hops_ > 0) step((1 - first_part) * computing(0), false, true);
  return result;
}

double AttentionClock::exchange(std::int64_t groups, bool with_keys) {
  const std::int64_t rows = attention_.batch * attention_.division.rows(attention_.sequence);
  const std::int64_t columns = width(groups) + (with_keys ? 2 * key_width(groups) : 0);
  const std::int64_t elements = rows * columns * ulysses_.size;
  const StepCollective all_to_all{
      .kind = Collective::all_to_all, .elements = elements, .dtype = attention_.dtype, .group = ulysses_};
  return costs_.stages(all_to_all, elements, Form::whole).front().seconds;
}

void AttentionClock::time(const Kind& kind, AttentionPass& pass) {
  pass.seconds = exchange(pieces_.front().count, kind.keys_in);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const RingTime attended = ring(kind, pieces_[i].count);
    double exchanging = 0;
    if (i + 1 < pieces_.size()) exchanging += exchange(pieces_[i + 1].count, kind.keys_in);
    if (i > 0) exchanging += exchange(pieces_[i - 1].count, kind.keys_out);
    pass.seconds += std::max(attended.seconds, exchanging + (share_links_ ? attended.travelling : 0));
    pass.computing += attended.computing;
  }
  pass.seconds += exchange(pieces_.back().count, kind.keys_out);
}

}  // namespace stretto
