#include "collectives/execution/stream_executor.hpp"

#include <algorithm>
#include <map>

#include "collectives/execution/buffers/plan_memory.hpp"
#include "collectives/plan/plan_builder.hpp"
#include "core/fail.hpp"
#include "device/memory/memory.hpp"
#include "transport/gpu/gpu_collectives.hpp"

namespace stretto {
namespace {

// Memory and kernels in the order of one stream.
class StreamSpace final : public ExecutionSpace {
 public:
  StreamSpace(Gpu& gpu, GpuStream stream) : gpu_(gpu), stream_(stream) {}

  std::shared_ptr<std::byte> allocate(std::size_t bytes) const override {
    const MemoryScope buffers(MemoryKind::buffers);
    return gpu_allocate(bytes);  // of this stream, or of the graph that is recorded in it
  }
  void convert(DType from, const void* x, DType to, void* out, std::int64_t count) const override {
    gpu_.kernels().convert(from, x, to, out, count, stream_);
  }
  void multiply(DType dtype, const void* x, void* out, std::int64_t count, double factor) const override {
    gpu_.kernels().multiply(dtype, x, out, count, factor, stream_);
  }

  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    if (to != from && bytes > 0) gpu_.copy(to, from, bytes, stream_);
  }
  // Performs the whole work at once: the host need not serve links in between.
  void perform(const LocalWork& work) const;
  void reduce_arrived(const std::byte* arrived, const std::byte* operand, std::byte* out, std::int64_t count, DType dtype,
                      ReduceOp op, std::int64_t divisor) const {
    const void* const both[] = {arrived, operand};
    gpu_.kernels().reduce_all(op, dtype, both, 2, out, count, divisor, stream_);
  }

 private:
  Gpu& gpu_;
  GpuStream stream_;
};

void StreamSpace::perform(const LocalWork& work) const {
  if (work.count == 0) return;
  std::vector<const void*> sources;
  sources.reserve(static_cast<std::size_t>(work.vectors));
  for (int i = 0; i < work.vectors; ++i) sources.push_back(work.source + i * work.distance);
  GpuKernels& kernels = gpu_.kernels();
  switch (work.kind) {
    case StepKind::copy: return copy(work.destination, work.source, work.bytes());
    case StepKind::reduce:
      return kernels.reduce_all(work.op, work.dtype, sources.data(), work.vectors, work.destination, work.count,
                                work.divisor, stream_);
    case StepKind::quantize:
      return kernels.quantize(work.destination_format, work.dtype, work.source, work.destination, work.count,
                              work.quantizing, stream_);
    case StepKind::dequantize:
      return kernels.dequantize(work.source_format, work.source, work.dtype, work.destination, work.count, stream_);
    case StepKind::dequantize_reduce:
      return kernels.dequantize_reduce(work.source_format, sources.data(), work.vectors, work.dtype, work.destination,
                                       work.count, work.divisor, stream_);
    case StepKind::requantize:
      return kernels.requantize(work.source_format, sources.data(), work.vectors, work.destination_format, work.destination,
                                work.count, work.divisor, work.quantizing, stream_);
    default: fail(ErrorCode::internal, "Step kind {} is no local work.", static_cast<int>(work.kind));
  }
}

// Enqueues one plan on a stream, round by round.
class StreamRun {
 public:
  StreamRun(const Execution& execution, const StreamSpace& space)
      : variant_(execution.planned->ordinary),
        space_(space),
        memory_(execution, variant_, space),
        rounds_(rounds_in_one_stream(*variant_.plan)) {
    ensure(!shares_memory(variant_.plan->request.method.algorithm),
           "A plan over the host's shared memory came to a GPU's stream.");
    std::size_t most = 0;
    for (const auto& round : rounds_) {
      std::size_t bytes = 0;
      for (const Step* step : round) {
        if (step->kind == StepKind::recv_reduce) bytes += memory_.bytes(step->destination);
      }
      most = std::max(most, bytes);
    }
    if (most > 0) arrived_ = space.allocate(most);
  }

  std::size_t rounds() const { return rounds_.size(); }

  void add_messages(std::size_t round, std::vector<GpuMessage>& messages) const {
    std::byte* arrives_at = arrived_.get();
    for (const Step* step : rounds_[round]) {
      switch (step->kind) {
        case StepKind::send:
          messages.push_back({true, memory_.target(step->source), memory_.bytes(step->source), step->peer});
          break;
        case StepKind::recv:
          messages.push_back({false, memory_.target(step->destination), memory_.bytes(step->destination), step->peer});
          break;
        case StepKind::recv_reduce:
          messages.push_back({false, arrives_at, memory_.bytes(step->destination), step->peer});
          arrives_at += messages.back().bytes;
          break;
        default: break;
      }
    }
  }

  // Enqueues the rest of a round, after its messages.
  void compute(std::size_t round) const {
    const std::byte* arrived = arrived_.get();
    for (const Step* step : rounds_[round]) {
      if (step->kind == StepKind::recv_reduce) {
        space_.reduce_arrived(arrived, memory_.at(step->source), memory_.target(step->destination), step->destination.count,
                              variant_.wire, memory_.op(), memory_.divisor_of(*step));
        arrived += memory_.bytes(step->destination);
      } else if (step->peer < 0) {
        space_.perform(memory_.local_work_of(*step));
      }
    }
  }

  void finish() const { memory_.finish(); }

 private:
  const PlanVariant& variant_;
  const StreamSpace& space_;
  PlanMemory memory_;
  std::vector<std::vector<const Step*>> rounds_;
  std::shared_ptr<std::byte> arrived_;  // messages of the current round that are still to be reduced
};

void put_collective(const Execution& execution, const StreamSpace& space, GpuStream stream) {
  const PlanRequest& request = execution.planned->ordinary.plan->request;
  const CallBuffers& buffers = execution.buffers;
  GpuLinks& links = *execution.gpu_links;
  if (!has_steps(request.method.algorithm)) {
    return links.collectives()->perform(
        {request.collective, buffers.input, buffers.output, request.count, buffers.dtype, buffers.op, request.root}, stream);
  }
  const StreamRun run(execution, space);
  std::vector<GpuMessage> messages;
  for (std::size_t round = 0; round < run.rounds(); ++round) {
    messages.clear();
    run.add_messages(round, messages);
    if (!messages.empty()) links.exchange(messages, stream);
    run.compute(round);
  }
  run.finish();
}

// Enqueues the sends and receives of one communicator, each a plan of one round, in the order of the calls.
void put_messages(const std::vector<const Execution*>& executions, const StreamSpace& space, GpuStream stream) {
  std::vector<GpuMessage> messages;
  for (const Execution* execution : executions) {
    const StreamRun run(*execution, space);
    ensure(run.rounds() <= 1, "A message takes {} rounds.", run.rounds());
    if (run.rounds() == 1) run.add_messages(0, messages);
  }
  if (!messages.empty()) executions.front()->gpu_links->exchange(messages, stream);
}

// Whether every message has the same round at its sender and its receiver, in every lane. All ranks give the same answer.
// Empty messages are dropped, and so are rounds that hold nothing else, which may shift the rounds of one rank. So every
// lane must have a part of every share.
bool in_step(const PlanRequest& request) {
  switch (request.method.algorithm) {
    case Algorithm::user:  // nobody knows
    case Algorithm::double_binary_tree:
    case Algorithm::server_set:
    case Algorithm::two_level:
    case Algorithm::three_level: return false;
    default: break;
  }
  const Shares shares = Shares::of(request);
  for (int rank = 0; rank < request.size; ++rank) {
    if (shares.length(rank) < most_lanes) return false;
  }
  return true;
}

void add_round(const Lane& lane, std::size_t round, std::vector<const Step*>& to) {
  const std::size_t begin = round == 0 ? 0 : lane.round_ends[round - 1];
  for (std::size_t i = begin; i < lane.round_ends[round]; ++i) to.push_back(&lane.steps[i]);
}

}  // namespace

std::vector<std::vector<const Step*>> rounds_in_one_stream(const Plan& plan) {
  std::vector<std::vector<const Step*>> rounds;
  if (plan.lanes.size() > 1 && in_step(plan.request)) {
    for (const Lane& lane : plan.lanes) {
      rounds.resize(std::max(rounds.size(), lane.round_ends.size()));
      for (std::size_t round = 0; round < lane.round_ends.size(); ++round) add_round(lane, round, rounds[round]);
    }
    return rounds;
  }
  for (const Lane& lane : plan.lanes) {
    for (std::size_t round = 0; round < lane.round_ends.size(); ++round) add_round(lane, round, rounds.emplace_back());
  }
  return rounds;
}

void put_into_stream(const std::vector<Sequence>& sequences, Gpu& gpu, GpuStream stream) {
  const StreamSpace space(gpu, stream);
  struct CommunicatorCalls {
    std::vector<const Execution*> messages, collectives;
  };
  std::map<std::uint64_t, CommunicatorCalls> by_communicator;  // its id
  for (const Sequence& sequence : sequences) {
    for (const Execution& execution : sequence) {
      CommunicatorCalls& waiting = by_communicator[execution.links->membership().id];
      (is_message(execution.planned->ordinary.plan->request.collective) ? waiting.messages : waiting.collectives)
          .push_back(&execution);
    }
  }
  for (const auto& [id, waiting] : by_communicator) {
    if (!waiting.messages.empty()) put_messages(waiting.messages, space, stream);
    for (const Execution* execution : waiting.collectives) put_collective(*execution, space, stream);
  }
}

}  // namespace stretto
