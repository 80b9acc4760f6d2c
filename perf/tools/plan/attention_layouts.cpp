#include "plan/attention_layouts.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "common/size_text.hpp"
#include "plan/plan_options.hpp"
#include "stretto/models/decoder_cost.hpp"

namespace plan_tool {
namespace {

std::vector<SequenceLayout> layouts_of(const AttentionLine& line) {
  if (line.layout != "all") return {sequence_layout_from_name(line.layout)};
  return {SequenceLayout::zigzag, SequenceLayout::contiguous, SequenceLayout::striped};
}

// The divisions to try. Without a ring, all layouts of the tokens are the same.
std::vector<SequenceDivision> divisions_of(const AttentionLine& line) {
  const std::vector<SequenceLayout> layouts = layouts_of(line);
  std::vector<SequenceDivision> divisions;
  const auto add = [&](int ring, int ulysses) {
    for (const SequenceLayout layout : layouts) {
      divisions.push_back({ring, ulysses, layout});
      if (ring == 1) break;
    }
  };
  if (line.ranks == 0) add(line.attention.division.ring, line.attention.division.ulysses);
  for (int ring = line.ranks; ring >= 1; --ring) {
    if (line.ranks % ring == 0) add(ring, line.ranks / ring);
  }
  return divisions;
}

AttentionLayout layout_of(const DividedAttention& attention, const AttentionCost& cost, bool own_rows) {
  const TensorParallel tensor{.planned_ranks = attention.tensor, .divides_rows = own_rows};
  const std::int64_t rows = attention.division.rows(attention.sequence);
  const DecoderShape shape{.hidden = attention.hidden, .heads = attention.heads, .kv_heads = attention.kv_heads};
  const LayerCost block = decoder_cost(shape, tensor, {}, {.count = attention.batch * rows, .dtype = attention.dtype}).block;
  const auto sent = [&](const PassCost& pass) {
    std::int64_t bytes = 0;
    for (const Exchange& each : pass.exchanges) bytes += each.bytes() * (each.kind == Collective::all_reduce ? 2 : 1);
    return bytes * (attention.tensor - 1) / attention.tensor;
  };
  return {.attention = attention,
          .own_rows = own_rows,
          .cost = cost,
          .tensor_bytes = {sent(block.forward), sent(block.input)},
          .layer_kept = block.kept + cost.result_again};
}

auto rank_of(const AttentionLayout& layout) {
  return std::tuple(layout.seconds(), layout.layer_kept, layout.sent_forward() + layout.sent_backward());
}

std::string time_text(double seconds) { return fmt::format("{:.3f} ms", milliseconds(seconds)); }

// "1.250 ms more computing"
std::string difference(double seconds, const char* what) {
  const std::string time = time_text(std::abs(seconds));
  return time == time_text(0) ? fmt::format("as much {}", what)
                              : fmt::format("{} {} {}", time, seconds > 0 ? "more" : "less", what);
}

// The reason for choosing the first one.
std::string reason_of(const std::vector<AttentionLayout>& sorted) {
  const AttentionLayout& best = sorted.front();
  std::string reason = fmt::format("{} takes {} a layer, forward and backward", best.text(), time_text(best.seconds()));
  const auto same_division = [&](const AttentionLayout& other) {
    return other.attention.division.ring == best.attention.division.ring &&
           other.attention.division.ulysses == best.attention.division.ulysses &&
           other.attention.division.layout == best.attention.division.layout;
  };
  const auto next = std::ranges::find_if_not(sorted, same_division);
  if (next != sorted.end()) {
    const double computing = (next->seconds() - next->exposed()) - (best.seconds() - best.exposed());
    reason += fmt::format("; next, {} takes {}: {} and {}", next->text(), time_text(next->seconds()),
                          difference(computing, "computing"),
                          difference(next->exposed() - best.exposed(), "exposed communication"));
  }
  if (best.own_rows) {
    const auto whole =
        std::ranges::find_if(sorted, [&](const AttentionLayout& other) { return same_division(other) && !other.own_rows; });
    reason += fmt::format("; with --sp a layer keeps {} instead of {}", perf::in_units(static_cast<double>(best.layer_kept)),
                          perf::in_units(static_cast<double>(whole->layer_kept)));
  }
  return reason + ".";
}

}  // namespace

std::int64_t AttentionLayout::sent_forward() const {
  return cost.forward.ring_bytes + cost.forward.ulysses_bytes + tensor_bytes.forward;
}
std::int64_t AttentionLayout::sent_backward() const {
  return cost.backward.ring_bytes + cost.backward.ulysses_bytes + tensor_bytes.backward;
}

std::string AttentionLayout::text() const {
  const SequenceDivision& division = attention.division;
  const std::string ring = division.ring > 1 ? fmt::format("cp {} ({})", division.ring, name(division.layout)) : "cp 1";
  return fmt::format("{} x ulysses {}", ring, division.ulysses);
}

AttentionLayouts attention_layouts(const AttentionLine& line) {
  std::optional<AttentionMachine> machine;
  if (line.has_times()) machine.emplace(AttentionMachine{{link_model_from_file(line.links)}, line.flops_per_second});
  AttentionLayouts layouts;
  for (const SequenceDivision& division : divisions_of(line)) {
    DividedAttention attention = line.attention;
    attention.division = division;
    try {
      attention.check();
      if (machine) machine->cluster.ranks = attention.ranks();
      const AttentionCost cost = attention_cost(attention, machine ? &*machine : nullptr);
      layouts.fitting.push_back(layout_of(attention, cost, false));
      if (attention.tensor > 1) layouts.fitting.push_back(layout_of(attention, cost, true));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_argument) throw;
      const bool known = std::ranges::any_of(layouts.refused, [&](const auto& other) {  // in another layout of the tokens
        return other.division.ring == division.ring && other.division.ulysses == division.ulysses &&
               other.reason == error.what();
      });
      if (!known) layouts.refused.push_back({division, error.what()});
    }
  }
  if (layouts.fitting.empty()) fail(ErrorCode::invalid_argument, "{}", layouts.refused.front().reason);
  if (line.has_times()) {
    std::ranges::stable_sort(layouts.fitting, {}, rank_of);
    layouts.reason = reason_of(layouts.fitting);
  } else {
    layouts.reason = "give --links and --flops-per-second for times, of which the shortest is chosen.";
  }
  layouts.chosen = line.has_times() || layouts.fitting.size() == 1;
  return layouts;
}

std::string train_flags(const AttentionLine& line, const AttentionLayout& layout) {
  const DividedAttention& attention = layout.attention;
  const int ring = attention.division.ring;
  return fmt::format(
      "--cp {} --ulysses {} --tp {}{}{} --attention {} --seq-length {} --num-attention-heads {} "
      "--hidden-size {} --micro-batch-size {} --global-batch-size {} --dtype {}",
      ring, attention.division.ulysses, attention.tensor, layout.own_rows ? " --sp" : "",
      ring > 1 ? fmt::format(" --cp-layout {}", name(attention.division.layout)) : "", line.mask, attention.sequence,
      attention.heads, attention.hidden, attention.batch, attention.batch, line.dtype);
}

}  // namespace plan_tool
