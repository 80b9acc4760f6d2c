// What a communicator plans for a call: which algorithm, by which plan, and what the ledger says of it.
#include <algorithm>
#include <cstdio>
#include <functional>

#include "collectives/communicator/group.hpp"
#include "collectives/communicator/launched_group.hpp"
#include "collectives/plan/plan_builder.hpp"
#include "transport/nccl/nccl_links.hpp"

namespace stretto {
namespace {

std::shared_ptr<const Partners> partners_of(const Plan& plan, const Membership& membership) {
  const auto in_job = [&](std::vector<int> ranks) {
    for (int& rank : ranks) rank = membership.job_ranks[static_cast<std::size_t>(rank)];
    return ranks;
  };
  return std::make_shared<const Partners>(
      Partners{membership.id, membership.job_ranks, in_job(plan.sends_to()), in_job(plan.receives_from())});
}

PlanRequest as_chosen(PlanRequest request, const Choice& choice) {
  request.method = choice.method;
  if (!choice.quantized) request.quantized = request.quantized_result = QuantizedFormat::none;
  return request;
}

// All ranks know them: so NCCL takes the call, whose shares have one count. (Of all_to_all_v each knows its own only.)
bool has_equal_shares(const Call& call, int size) {
  return counts_shares(call.collective) && call.collective != Collective::all_to_all &&
         call.counts.size() == static_cast<std::size_t>(size) &&
         std::adjacent_find(call.counts.begin(), call.counts.end(), std::not_equal_to<>()) == call.counts.end();
}
Call with_one_count(Call call) {
  call.count = call.counts.front();
  call.counts.clear();
  return call;
}

// STRETTO_EXPLAIN: one line a plan.
void explain(const std::string& group, const Call& call, QuantizedFormat format, const Choice& choice, bool symmetric) {
  std::string line = fmt::format("stretto: {} of {} {} in '{}'{}: {}", name(call.collective), call.count, name(call.dtype),
                                 group, symmetric ? ", symmetric memory" : "", choice.reason);
  for (std::size_t i = 1; i < std::min<std::size_t>(4, choice.candidates.size()); ++i) {
    const Candidate& other = choice.candidates[i];
    line += fmt::format("{} {}{} {:.1f} us", i == 1 ? "; then" : ",", to_string(other.method),
                        other.quantized ? fmt::format(" in {}", name(format)) : "", other.seconds * 1e6);
  }
  std::fputs((line + "\n").c_str(), stderr);
}

}  // namespace

std::shared_ptr<const PlannedCall> Communicator::Group::plan_for(const Call& call, const OperationOptions& options,
                                                                 Device device) {
  if (device == Device::cuda) {
    join_gpus();
    if (has_equal_shares(call, size())) return plan_for(with_one_count(call), options, device);
  }
  const Quantization& how = options.quantization;
  const PlanKey key{call.collective, options.method,      call.count, call.root,  call.dtype,         call.op,
                    call.counts,     call.receive_counts, how.format, how.result, how.only_if_faster, device};
  const std::lock_guard lock(plans_mutex_);
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;
  std::shared_ptr<const PlannedCall> planned =
      device == Device::cuda ? planned_on_gpus(call, options) : make_planned(call, options);
  if (plans_.size() >= most_plans) plans_.clear();
  plans_.emplace(key, planned);
  return planned;
}

void Communicator::Group::check(const Call& call, const OperationOptions& options, Device device) {
  if (device == Device::cpu) {
    plan_for(call, options, device);
  } else {
    const PlanRequest request = as_chosen(request_of(call, options), choice_on_gpus(call, options, true));
    if (request.method.algorithm != Algorithm::nccl) make_plan(request);
  }
}

Estimate Communicator::Group::estimate(const Call& call, const OperationOptions& options, Device device) {
  const bool on_gpus = device == Device::cuda;
  PlanRequest request;
  DType wire = call.dtype;
  if (on_gpus) {
    // Threads of a process mostly share a GPU, and copy; processes have one each.
    const Choice choice = choice_on_gpus(call, options, !links_.one_process() && nccl() != nullptr);
    request = as_chosen(request_of(call, options), choice);
    wire = choice.wire;
  } else {
    const std::shared_ptr<const PlannedCall> planned = plan_for(call, options, device);
    request = planned->ordinary.plan->request;
    wire = planned->ordinary.wire;
  }
  if (call.collective == Collective::all_to_all && !request.counts.empty()) {
    request.count = (Shares::of(request).total() + size() - 1) / size();
    request.counts.clear();
    request.receive_counts.clear();
  }
  Estimate estimate;
  estimate.seconds = context_->selector().seconds(request, wire, nodes_, on_gpus);
  request.count = std::min<std::int64_t>(request.count, 1);
  for (std::int64_t& count : request.counts) count = std::min<std::int64_t>(count, 1);
  estimate.overhead = std::min(estimate.seconds, context_->selector().seconds(request, wire, nodes_, on_gpus));
  return estimate;
}

PlanRequest Communicator::Group::request_of(const Call& call, const OperationOptions& options) const {
  PlanRequest request{call.collective, options.method, rank(),      size(),
                      call.count,      call.root,      call.counts, call.receive_counts};
  request.ranks_per_node = node_sizes_.ranks_per_node;
  request.node_sizes = node_sizes_.uneven;
  request.nodes_per_pod = node_sizes_.nodes_per_pod;
  const Quantization& how = options.quantization;
  request.quantized = how.format;
  if (call.collective == Collective::all_reduce) {
    request.quantized_result = how.result == QuantizedFormat::none ? how.format : how.result;
  }
  return request;
}

std::shared_ptr<const PlannedCall> Communicator::Group::make_planned(const Call& call,
                                                                     const OperationOptions& options) const {
  const PlanRequest request = request_of(call, options);
  const bool may_be_plain = options.quantization.only_if_faster;
  auto planned = std::make_shared<PlannedCall>();
  const bool anywhere = links_.one_process();  // all memory is alike
  planned->symmetric = way_of(call, request, may_be_plain, links_.shares_memory());
  planned->ordinary = anywhere || !links_.shares_memory() ? planned->symmetric : way_of(call, request, may_be_plain, false);
  const PlanRequest& one = planned->ordinary.plan->request;
  const PlanRequest& other = planned->symmetric.plan->request;
  if (one.method == other.method && one.quantized == other.quantized) planned->ordinary = planned->symmetric;
  return planned;
}

std::shared_ptr<const PlannedCall> Communicator::Group::planned_on_gpus(const Call& call,
                                                                        const OperationOptions& options) const {
  const PlanRequest request = request_of(call, options);
  const Choice choice = choice_on_gpus(call, options, false);
  if (context_->selector().explains() && rank() == 0) explain(name_, call, request.quantized, choice, false);
  auto planned = std::make_shared<PlannedCall>();
  planned->ordinary = planned->symmetric = way_of(call, request, choice);
  return planned;
}

Choice Communicator::Group::choice_on_gpus(const Call& call, const OperationOptions& options, bool nccl_serves) const {
  const PlanRequest request = request_of(call, options);
  const bool plain = request.quantized == QuantizedFormat::none && request.counts.empty() && call.op != ReduceOp::premul_sum;
  const GpuCollective collective{call.collective, nullptr, nullptr, call.count, call.dtype, call.op, call.root};
  const bool nccl_does = plain && (gpu_links_ ? gpu_links_->does(collective) : nccl_serves && NcclLinks::knows(collective));
  return context_->selector().choose_on_gpus(request, call.dtype, call.op, nodes_, nccl_does,
                                             options.quantization.only_if_faster);
}

PlanVariant Communicator::Group::way_of(const Call& call, PlanRequest request, bool may_be_plain, bool symmetric) const {
  const Choice choice = context_->selector().choose(request, call.dtype, call.op, nodes_, links_, symmetric, may_be_plain);
  if (context_->selector().explains() && rank() == 0) explain(name_, call, request.quantized, choice, symmetric);
  return way_of(call, std::move(request), choice);
}

PlanVariant Communicator::Group::way_of(const Call& call, PlanRequest request, const Choice& choice) const {
  request = as_chosen(std::move(request), choice);
  const bool has_steps = request.method.algorithm != Algorithm::nccl;
  PlanVariant way{std::make_shared<const Plan>(has_steps ? make_plan(request) : Plan{.request = request}), choice.wire,
                  nullptr, has_steps ? packet_bytes_of(request, choice.wire) : 0};
  Record label;
  label.collective = call.collective;
  label.algorithm = request.method.algorithm;
  label.group = name_;
  label.group_size = size();
  label.dtype = way.wire;
  label.quantized = request.quantized;
  // As the caller gave them; of uneven shares, all that this rank puts in or gets out.
  label.count = request.counts.empty() ? request.count : std::max(input_count(request), output_count(request));
  const auto width = static_cast<std::int64_t>(size_of(way.wire));
  label.bytes_sent = static_cast<std::uint64_t>(way.plan->bytes_sent(width));
  label.bytes_between_nodes = static_cast<std::uint64_t>(way.plan->bytes_between_nodes(width, nodes_));
  label.partners = partners_of(*way.plan, links_.membership());
  label.stream = Stream::inline_().name();
  way.label = fast_path_log_->keep(std::move(label));
  return way;
}

}  // namespace stretto
