#include "collectives/communicator/inline_fast_path.hpp"

#include "collectives/execution/plan_run.hpp"
#include "collectives/execution/run_until_done.hpp"
#include "collectives/plan/plan_builder.hpp"
#include "device/stream/ticks.hpp"

namespace stretto {
namespace {

bool same_shape(const Call& a, const Call& b) {
  return a.collective == b.collective && a.count == b.count && a.dtype == b.dtype && a.op == b.op && a.root == b.root;
}

std::ptrdiff_t distance(const void* from, const void* to) {
  return static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from));
}

bool meet(const void* a, std::int64_t a_bytes, const void* b, std::int64_t b_bytes) {
  const std::ptrdiff_t apart = distance(a, b);
  return apart < a_bytes && -apart < b_bytes;
}

}  // namespace

// Not those whose arguments are lists, those with a name of their own in the ledger, nor those that are quantized or say how
// and not to what, which is refused.
bool InlineFastPath::can_pass(const Call& call, const OperationOptions& options) {
  const Quantization& how = options.quantization;
  return !is_message(call.collective) && call.counts.empty() && call.receive_counts.empty() && options.tag.empty() &&
         how.format == QuantizedFormat::none && how.result == QuantizedFormat::none &&
         how.rounding == Rounding::nearest_even && !how.only_if_faster && how.errors == nullptr && how.tensor.empty();
}

InlineFastPath::Shape& InlineFastPath::place_of(const Call& call, const Method& method) {
  std::uint64_t hash = static_cast<std::uint64_t>(call.count) * 16 + static_cast<std::uint64_t>(call.collective);
  hash = hash * 16 + static_cast<std::uint64_t>(call.dtype);
  hash = (hash * 8 + static_cast<std::uint64_t>(call.op)) * 64 + static_cast<std::uint64_t>(call.root);
  hash = (hash * 32 + static_cast<std::uint64_t>(method.algorithm)) * 0x9e3779b97f4a7c15U;
  return shapes_[hash >> 58];
}

void InlineFastPath::remember(const Operation::State& prepared) {
  const Call& call = prepared.call;
  if (!can_pass(call, prepared.options)) return;
  const PlanRequest& request = prepared.planned->ordinary.plan->request;
  const auto width = static_cast<std::int64_t>(size_of(call.dtype));
  Shape& shape = call.collective == Collective::barrier ? barrier_ : place_of(call, prepared.options.method);
  shape.planned = prepared.planned;
  shape.call = call;
  if (call.collective != Collective::barrier) shape.call.keep_alive = {};  // the caller's memory is not ours to keep
  shape.method = prepared.options.method;
  shape.factor = prepared.options.factor;
  shape.read_bytes = input_count(request) * width;
  shape.written_bytes = output_count(request) * width;
  shape.in_place = can_be_in_place(call.collective);
  shape.difference = input_behind_output(request) * width;
}

bool InlineFastPath::run(const Call& call, const OperationOptions& options, Work& work) {
  if (!can_pass(call, options)) return false;
  if (call.collective == Collective::barrier) return run_barrier(options.method, work);
  const Shape& shape = place_of(call, options.method);
  if (!shape.planned || !same_shape(call, shape.call) || options.method != shape.method) return false;
  if ((call.input == nullptr && shape.read_bytes > 0) || (call.output == nullptr && shape.written_bytes > 0)) return false;
  if (meet(call.input, shape.read_bytes, call.output, shape.written_bytes) &&
      !(shape.in_place && distance(call.output, call.input) == shape.difference)) {
    return false;
  }
  if (call.op == ReduceOp::premul_sum && options.factor != shape.factor) return false;
  if (!group_.is_idle()) return false;
  perform(*shape.planned, call, options.factor, work);
  return true;
}

bool InlineFastPath::run_barrier(const Method& method, Work& work) {
  if (!barrier_.planned || method != barrier_.method || !group_.is_idle()) return false;
  perform(*barrier_.planned, barrier_.call, 1, work);
  return true;
}

bool InlineFastPath::run(const Operation::State& prepared, Work& work) {
  if (!can_pass(prepared.call, prepared.options) || !group_.is_idle()) return false;
  perform(*prepared.planned, prepared.call, prepared.options.factor, work);
  return true;
}

void InlineFastPath::perform(const PlannedCall& planned, const Call& call, double factor, Work& work) {
  std::uint64_t begin = 0;
  Network& network = group_.context().network();
  const PlanVariant* way = &planned.ordinary;
  Execution execution;
  execution.caller = caller_of(call, factor);
  execution.take(*way);
  execution.links = &group_.links();
  execution.shared = group_.shared_memory();
  const auto finish = [&](auto& run) {
    const auto advance = [&] {
      const bool moved = run.advance();
      if (begin == 0) begin = ticks();  // when the others have this rank's word: the clock must not hold it up
      return run.finished() ? Progressed::to_the_end : moved ? Progressed::something : Progressed::nothing;
    };
    run_until_done(network, group_.links().wait_policy(), network.timeout(), advance, [&] {
      Ledger& ledger = group_.context().ledger();
      Record now = *way->label;
      now.sequence = ledger.next_sequence();
      now.times.started = seconds_of(begin, begin).begin;
      give_up(job_ranks_of(run.awaited(), group_.links()), network,
              fmt::format("{}; the last operations before it:{}", now.to_string(), ledger.last_operations(8)));
    });
  };
  try {
    naming_losses(network, [&] {
      if (planned.depends_on_memory()) {
        BufferExchange talk(execution, planned);
        finish(talk);
        way = talk.symmetric() ? &planned.symmetric : &planned.ordinary;
        execution.take(*way);
      }
      if (shares_memory(way->plan->request.method.algorithm)) {
        SharedMemoryRun run(execution, planned.depends_on_memory());
        finish(run);
      } else {
        PlanRun run(execution);
        finish(run);
      }
    });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) group_.give_up();  // else all ranks have found the same, and stopped
    throw;
  } catch (...) {
    group_.give_up();
    throw;
  }
  const std::uint64_t end = ticks();
  group_.fast_path_log().write(way->label.get(), begin, end);
  // Two stores, and nobody reads them again as one, which would wait until they are in the cache, behind the post.
  work.was_done(begin, end);
}

}  // namespace stretto
