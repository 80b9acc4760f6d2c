#include "collectives/communicator/inline_fast_path.hpp"

#include <new>
#include <utility>

#include "collectives/calls/call_arguments.hpp"
#include "collectives/execution/give_up.hpp"
#include "collectives/execution/operation_run.hpp"
#include "collectives/execution/run_until_done.hpp"
#include "collectives/plan/plan_builder.hpp"
#include "device/stream/ticks.hpp"

namespace stretto {
namespace {

std::ptrdiff_t distance(const void* from, const void* to) {
  return static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from));
}

bool overlap(const void* a, std::int64_t a_bytes, const void* b, std::int64_t b_bytes) {
  const std::ptrdiff_t apart = distance(a, b);
  return apart < a_bytes && -apart < b_bytes;
}

}  // namespace

// Excludes calls with counts by rank, with servers, or with any quantization option (options without a format are refused
// later).
bool InlineFastPath::can_serve(const Call& call, const OperationOptions& options) {
  const Quantization& how = options.quantization;
  return !is_message(call.collective) && call.counts.empty() && call.receive_counts.empty() && options.servers == 0 &&
         how.format == QuantizedFormat::none && how.result == QuantizedFormat::none &&
         how.rounding == Rounding::nearest_even && !how.only_if_faster && how.errors == nullptr && how.tensor.empty();
}

void InlineFastPath::remember(const Operation::State& prepared) {
  const Call& call = prepared.call;
  if (!can_serve(call, prepared.options)) return;
  const PlanRequest& request = prepared.planned->ordinary.plan->request;
  const auto width = static_cast<std::int64_t>(size_of(call.dtype));
  CallShape shape;
  shape.planned = prepared.planned;
  shape.call = call;
  if (call.collective != Collective::barrier) shape.call.keep_alive = {};  // the caller's memory must not be kept
  shape.method = prepared.options.method;
  shape.read_bytes = input_count(request) * width;
  shape.written_bytes = output_count(request) * width;
  shape.can_be_in_place = can_be_in_place(call.collective);
  shape.in_place_distance = input_behind_output(request) * width;
  if (call.collective == Collective::barrier) {
    barrier_ = std::move(shape);
  } else {
    shapes_.add(std::move(shape));
  }
}

bool InlineFastPath::run(const Call& call, const OperationOptions& options, const CallSite& site, Work& work) {
  if (!can_serve(call, options)) return false;
  if (call.collective == Collective::barrier) return run_barrier(options, site, work);
  const CallShape* const known = shapes_.find(call, options.method);
  if (known == nullptr) return false;
  const CallShape& shape = *known;
  if ((call.input == nullptr && shape.read_bytes > 0) || (call.output == nullptr && shape.written_bytes > 0)) return false;
  if (overlap(call.input, shape.read_bytes, call.output, shape.written_bytes) &&
      !(shape.can_be_in_place && distance(call.output, call.input) == shape.in_place_distance)) {
    return false;
  }
  if (!turns_.is_idle()) return false;
  if (call.op == ReduceOp::premul_sum) check_factor(call, options.factor);
  perform(*shape.planned, call, options.factor, {site, options.tag}, work);
  return true;
}

bool InlineFastPath::run_barrier(const OperationOptions& options, const CallSite& site, Work& work) {
  if (!barrier_.planned || options.method != barrier_.method || !turns_.is_idle()) return false;
  perform(*barrier_.planned, barrier_.call, 1, {site, options.tag}, work);
  return true;
}

bool InlineFastPath::run(const Operation::State& prepared, Work& work) {
  if (!can_serve(prepared.call, prepared.options) || !turns_.is_idle()) return false;
  perform(*prepared.planned, prepared.call, prepared.options.factor, {prepared.options.site, prepared.options.tag}, work);
  return true;
}

void InlineFastPath::perform(const PlannedCall& planned, const Call& call, double factor, const CallLabel& label,
                             Work& work) {
  std::uint64_t begin = 0, end = 0;
  Network& network = links_.network();
  Execution execution;
  execution.planned = &planned;
  execution.buffers = buffers_of(call, factor);
  execution.links = &links_;
  execution.shared = &shared_;
  const PlanVariant* variant = &planned.ordinary;
  bool waited = false;
  try {
    naming_losses(network.job(), [&] {
      OperationRun run(execution, nullptr);
      const auto advance = [&] {
        const bool moved = run.advance();
        if (begin == 0) {  // after the first post, which reading the clock must not delay
          begin = ticks();
          if (run.finished()) end = begin;  // this rank had not to wait, and the operation ends as it begins
        }
        return run.finished() ? Progressed::to_the_end : moved ? Progressed::something : Progressed::nothing;
      };
      const auto note_variant = [&] {
        if (run.variant() != nullptr) variant = run.variant();
      };
      try {
        run_until_done(
            network, links_.wait_policy(), network.timeout(), advance, [&] { return job_ranks_of(run.awaited(), links_); },
            [&] { return ledger_.last(1).back().headline(); }, [&] { return ledger_.last_operations(8); },
            [&] {
              note_variant();
              log_.waits_in(variant->record.get(), label, begin);
              waited = true;
            });
      } catch (...) {
        note_variant();
        throw;
      }
      variant = run.variant();
    });
  } catch (const Error& error) {
    // All ranks have found an invalid argument at the same step, and have stopped there, so the communicator stays usable.
    if (error.code() != ErrorCode::invalid_argument) turns_.give_up();
    note_failure(*variant->record, label, begin);
    throw;
  } catch (...) {
    turns_.give_up();
    note_failure(*variant->record, label, begin);
    throw;
  }
  if (end == 0) end = ticks();
  if (waited) log_.waits_no_longer();
  log_.write(variant->record.get(), label, begin, end);
  // These two stores must not soon be read by one load: such a load would wait until both have left the store buffer, where
  // they queue behind the post.
  work.was_done(begin, end);
}

// The error may take the communicator with it, and its log, before another thread reads what this rank was in.
void InlineFastPath::note_failure(const Record& what, const CallLabel& label, std::uint64_t begin) {
  try {
    const std::uint64_t now = ticks();
    const Span span = seconds_of(begin == 0 ? now : begin, now);
    Record record = what;
    label.enter(record);
    record.times = {span.begin, span.begin, span.end, span.end - span.begin};
    record.failed = true;
    ledger_.enter_failed(std::move(record), log_);
  } catch (const std::bad_alloc&) {  // the operation's own error says more
    log_.waits_no_longer();
  }
}

}  // namespace stretto
