// A plan as text, with one line for each step.
#include <fmt/format.h>

#include <algorithm>

#include "stretto/plan.hpp"

namespace stretto {
namespace {

std::string text_of(const Slice& slice) {
  if (slice.buffer == Buffer::packed) {
    return fmt::format("{}[{}..{})", name(slice.format), slice.offset, slice.offset + slice.count);
  }
  const char* buffer = slice.buffer == Buffer::input ? "input" : slice.buffer == Buffer::output ? "output" : "scratch";
  return fmt::format("{}[{}..{})", buffer, slice.offset, slice.offset + slice.count);
}

std::string sum_text(const Step& step) {
  return fmt::format("{} vectors, {} apart, from {}", step.vectors, step.apart, text_of(step.source));
}

std::string text_of(const Step& step) {
  switch (step.kind) {
    case StepKind::send: return fmt::format("send {} to {}", text_of(step.source), step.peer);
    case StepKind::recv: return fmt::format("recv {} from {}", text_of(step.destination), step.peer);
    case StepKind::recv_reduce:
      return fmt::format("recv_reduce {} = {} with {}", text_of(step.destination), text_of(step.source), step.peer);
    case StepKind::copy: return fmt::format("copy {} = {}", text_of(step.destination), text_of(step.source));
    case StepKind::reduce:
      return fmt::format("reduce {} = the {} vectors in {}", text_of(step.destination),
                         step.source.count / std::max<std::int64_t>(1, step.destination.count), text_of(step.source));
    case StepKind::quantize: return fmt::format("quantize {} = {}", text_of(step.destination), text_of(step.source));
    case StepKind::dequantize: return fmt::format("dequantize {} = {}", text_of(step.destination), text_of(step.source));
    case StepKind::dequantize_reduce:
      return fmt::format("dequantize_reduce {} = {}", text_of(step.destination), sum_text(step));
    case StepKind::requantize: return fmt::format("requantize {} = {}", text_of(step.destination), sum_text(step));
    case StepKind::signal: return "signal";
    case StepKind::wait: return fmt::format("wait for {}", step.peer);
    case StepKind::read:
      return fmt::format("read {} = {} of {}", text_of(step.destination), text_of(step.source), step.peer);
    case StepKind::read_reduce:
      return fmt::format("read_reduce {} of {} = {} of all{}", text_of(step.destination),
                         step.peer == everybody ? "everybody" : fmt::format("{}", step.peer), text_of(step.source),
                         step.source.buffer == Buffer::input ? "" : fmt::format(" others and {}", text_of(own_part(step))));
    case StepKind::copy_to_all:
      return fmt::format("copy_to_all {} of everybody = {} of {}", text_of(step.destination), text_of(step.source),
                         step.peer);
  }
  return {};
}

}  // namespace

std::string Plan::to_string() const {
  std::string text =
      fmt::format("{} by {}, rank {} of {}, {} elements, {} of scratch", name(request.collective),
                  stretto::to_string(request.method), request.rank, request.size, request.count, scratch_count);
  for (int format = 0; format < quantized_formats; ++format) {
    const std::int64_t count = packed_counts[static_cast<std::size_t>(format)];
    if (count > 0) text += fmt::format(", {} packed in {}", count, name(static_cast<QuantizedFormat>(format)));
  }
  text += '\n';
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    std::size_t at = 0;
    for (std::size_t round = 0; round < lanes[l].round_ends.size(); ++round) {
      for (; at < lanes[l].round_ends[round]; ++at) {
        text += fmt::format("  lane {} round {}: {}\n", l, round, text_of(lanes[l].steps[at]));
      }
    }
  }
  return text;
}

}  // namespace stretto
