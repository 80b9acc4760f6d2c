#include "collectives/calls/call_arguments.hpp"

#include <cmath>
#include <string_view>

#include "collectives/plan/plan_builder.hpp"
#include "core/fail.hpp"
#include "device/gpu.hpp"

namespace stretto {
namespace {

// The addresses of `count` elements.
struct MemoryRange {
  std::uintptr_t begin, end;
  MemoryRange(const void* data, std::int64_t count, DType dtype)
      : begin(reinterpret_cast<std::uintptr_t>(data)), end(begin + static_cast<std::uintptr_t>(count) * size_of(dtype)) {}
  bool overlaps(const MemoryRange& other) const { return begin < other.end && other.begin < end; }
};

bool is_in_place(const Call& call, const PlanRequest& request) {
  return can_be_in_place(call.collective) &&
         static_cast<const std::byte*>(call.input) ==
             static_cast<const std::byte*>(call.output) +
                 input_behind_output(request) * static_cast<std::ptrdiff_t>(size_of(call.dtype));
}

void check_types(const Call& call) {
  require(std::string_view(name(call.dtype)) != "unknown", "{} got the element type number {}, which does not exist.",
          name(call.collective), static_cast<int>(call.dtype));
  require(std::string_view(name(call.op)) != "unknown", "{} got the reduction number {}, which does not exist.",
          name(call.collective), static_cast<int>(call.op));
}

void check_quantization(const Call& call, const Quantization& how) {
  const char* const what = name(call.collective);
  const bool known = std::string_view(name(how.format)) != "unknown" && std::string_view(name(how.result)) != "unknown";
  require(known, "{} got the quantized formats number {} and {}; there are {}, counted from 0.", what,
          static_cast<int>(how.format), static_cast<int>(how.result), quantized_formats);
  require(how.result == QuantizedFormat::none || call.collective == Collective::all_reduce,
          "{} got {} as the format of its result; only all_reduce quantizes twice, {} takes one format.", what,
          name(how.result), what);
  require(how.result == QuantizedFormat::none || how.format != QuantizedFormat::none,
          "{} got {} as the format of its result and none for what goes there; give both, or the latter alone.", what,
          name(how.result));
  if (how.format == QuantizedFormat::none) {
    const char* const meant = how.errors != nullptr                    ? "errors"
                              : !how.tensor.empty()                    ? "tensor"
                              : how.only_if_faster                     ? "only_if_faster"
                              : how.rounding != Rounding::nearest_even ? "rounding"
                                                                       : nullptr;
    require(meant == nullptr, "{} got Quantization::{}, but no format that it would be for; give Quantization::format, too.",
            what, meant == nullptr ? "" : meant);
    return;
  }
  require(can_be_quantized(call.collective), "{} cannot be quantized to {}; all_gather, reduce_scatter and all_reduce can.",
          what, name(how.format));
  require(call.dtype == DType::f32 || call.dtype == DType::bf16 || call.dtype == DType::f16,
          "{} of {} cannot be quantized to {}; f32, bf16 and f16 can.", what, name(call.dtype), name(how.format));
  require(
      !reduces(call.collective) || call.op == ReduceOp::sum || call.op == ReduceOp::avg || call.op == ReduceOp::premul_sum,
      "{} ({}) cannot be quantized to {}; sum, avg and premul_sum can.", what, name(call.op), name(how.format));
  require(how.rounding == Rounding::nearest_even || how.rounding == Rounding::stochastic,
          "{} got the rounding number {}, which does not exist.", what, static_cast<int>(how.rounding));
  for (const QuantizedFormat format : {how.format, how.result}) {
    require(how.rounding == Rounding::nearest_even || (format != QuantizedFormat::fp8 && format != QuantizedFormat::onebit),
            "{} to {} cannot round stochastically; int8 and int4 can.", what, name(format));
  }
  require(how.errors == nullptr || !how.tensor.empty(),
          "{} to {} got error feedback, but no name of the tensor whose errors these are; give Quantization::tensor.", what,
          name(how.format));
}

}  // namespace

void check_kind(const Call& call, const Quantization& quantization) {
  check_types(call);
  check_quantization(call, quantization);
}

void check_factor(const Call& call, double factor) {
  if (!reduces(call.collective) || call.op != ReduceOp::premul_sum || is_narrow(call.dtype)) return;
  if (call.dtype == DType::f32 || call.dtype == DType::f64) return;
  const bool is_signed = call.dtype == DType::i8 || call.dtype == DType::i32 || call.dtype == DType::i64;
  const double limit = std::pow(2.0, static_cast<double>(8 * size_of(call.dtype)) - (is_signed ? 1 : 0));
  require(factor == std::floor(factor) && factor < limit && factor >= (is_signed ? -limit : 0.0),
          "{} of {} got the factor {}, which {} does not hold; integers are multiplied by an integer.",
          name(call.collective), name(call.dtype), factor, name(call.dtype));
}

void check_buffers(const Call& call, const PlanRequest& request) {
  const char* const what = name(call.collective);
  const std::int64_t reads = input_count(request);
  const std::int64_t writes = output_count(request);
  require((reads == 0 || call.input != nullptr) && (writes == 0 || call.output != nullptr),
          "{} of {} {} got a null {} on rank {}, which has {} elements there.", what, call.count, name(call.dtype),
          reads > 0 && call.input == nullptr ? "input" : "output", request.rank,
          reads > 0 && call.input == nullptr ? reads : writes);
  const MemoryRange input(call.input, reads, call.dtype);
  const MemoryRange output(call.output, writes, call.dtype);
  require(call.collective == Collective::barrier || !input.overlaps(output) || is_in_place(call, request),
          "{} of {} {} on rank {} got an input and an output that {}.", what, call.count, name(call.dtype), request.rank,
          can_be_in_place(call.collective)
              ? "overlap without being the same place; use separate buffers, or the in-place form"
              : "share memory, but it has no in-place form; use separate buffers");
}

void check_errors_apart(const Call& call, const PlanRequest& request, const std::string& tensor,
                        const Quantizing& quantizing) {
  for (const Tensor& state : quantizing.residuals) {
    if (!state) continue;
    const MemoryRange errors(state.raw(), state.size(), state.dtype());
    const auto shares = [&](const void* data, std::int64_t count) {
      return count > 0 && MemoryRange(data, count, call.dtype).overlaps(errors);
    };
    const bool input = shares(call.input, input_count(request));
    require(!input && !shares(call.output, output_count(request)),
            "{} of {} {} on rank {} got an {} that lies in its own error state, '{}'; give it a buffer of its own.",
            name(call.collective), call.count, name(call.dtype), request.rank, input ? "input" : "output", tensor);
  }
}

std::optional<Device> device_of_buffers(const Call& call, const PlanRequest& request) {
  const auto device = [](const void* data, std::int64_t count) -> std::optional<Device> {
    if (data == nullptr || count == 0) return std::nullopt;
    return gpu().is_device_memory(data) ? Device::cuda : Device::cpu;
  };
  const std::optional<Device> input = device(call.input, input_count(request));
  const std::optional<Device> output = device(call.output, output_count(request));
  require(!input || !output || *input == *output,
          "{} got one buffer in a GPU's memory and one in the host's; put both into one.", name(call.collective));
  return input ? input : output;
}

}  // namespace stretto
