#include "collectives/execution/buffers/plan_memory.hpp"

#include "core/split_mix.hpp"

namespace stretto {
namespace {

// Ranks and hops draw different random numbers.
std::uint64_t seed_of(std::uint64_t seed, int rank, Hop hop) {
  return split_mixed(seed +
                     (static_cast<std::uint64_t>(rank) * hops + static_cast<std::uint64_t>(hop) + 1) * split_mix_step);
}

}  // namespace

PlanMemory::PlanMemory(const Execution& execution, const PlanVariant& variant, const ExecutionSpace& space)
    : execution_(execution),
      plan_(*variant.plan),
      wire_(variant.wire),
      op_(combining(execution.buffers.op)),
      width_(size_of(wire_)),
      buffers_(execution.buffers, wire_, plan_.request, space) {
  if (plan_.scratch_count > 0) scratch_ = space.allocate(static_cast<std::size_t>(plan_.scratch_count) * width_);
  for (int i = 0; i < quantized_formats; ++i) {
    const std::int64_t bytes = packed_bytes(static_cast<QuantizedFormat>(i), plan_.packed_counts[i]);
    if (bytes > 0) packed_[i] = space.allocate(static_cast<std::size_t>(bytes));
  }
}

LocalWork PlanMemory::local_work_of(const Step& step) const {
  LocalWork work;
  work.kind = step.kind;
  work.source = at(step.source);
  work.destination = target(step.destination);
  work.count = step.destination.count;
  work.dtype = wire_;
  work.op = op_;
  work.divisor = divisor_of(step);
  work.source_format = step.source.format;
  work.destination_format = step.destination.format;
  if (step.kind == StepKind::reduce) {
    work.vectors = static_cast<int>(step.source.count / work.count);
    work.distance = static_cast<std::int64_t>(bytes(step.destination));
  } else {
    work.vectors = step.vectors;
    work.distance = packed_bytes(step.source.format, step.apart);
  }
  if (step.kind != StepKind::quantize && step.kind != StepKind::requantize) return work;
  const Quantizing& how = *execution_.quantizing;
  const Tensor& residual = how.residuals[static_cast<int>(step.hop)];
  work.quantizing.rounding = how.rounding;
  work.quantizing.seed = seed_of(how.seed, plan_.request.rank, step.hop);
  // Elements are numbered by their places in the error state, even if there is none, so that neither pieces nor parts change
  // the random numbers of an element.
  work.quantizing.first_element = static_cast<std::uint64_t>(step.residual);
  if (residual.size() > 0) work.quantizing.residual = residual.data<float>() + step.residual;
  return work;
}

std::int64_t PlanMemory::divisor_of(const Step& step) const {
  return step.finishes && execution_.buffers.op == ReduceOp::avg ? plan_.request.size : 1;
}

const std::byte* PlanMemory::at(const Slice& slice) const {
  const std::size_t offset = bytes({slice.buffer, 0, slice.offset, slice.format});
  switch (slice.buffer) {
    case Buffer::input: return buffers_.input() + offset;
    case Buffer::output: return buffers_.output() + offset;
    case Buffer::scratch: return scratch_.get() + offset;
    case Buffer::packed: return packed_[static_cast<int>(slice.format)].get() + offset;
  }
  return nullptr;
}

std::size_t PlanMemory::bytes(const Slice& slice) const {
  if (slice.buffer != Buffer::packed) return static_cast<std::size_t>(slice.count) * width_;
  return static_cast<std::size_t>(packed_bytes(slice.format, slice.count));
}

}  // namespace stretto
