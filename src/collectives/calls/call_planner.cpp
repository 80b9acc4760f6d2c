#include "collectives/calls/call_planner.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <functional>

#include "collectives/calls/user_plan.hpp"
#include "collectives/execution/shared_memory.hpp"
#include "collectives/plan/call_signature.hpp"
#include "collectives/plan/plan_builder.hpp"
#include "collectives/selection/choose_costs.hpp"

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

// Whether all ranks know that all shares are equal, so that links can perform the call as one operation. (In all_to_all_v a
// rank knows only its own counts.)
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

// What was chosen and why, and what comes next in the cost model's order.
std::string explanation_of(const Choice& choice, QuantizedFormat format) {
  std::string text = choice.reason;
  int others = 0;
  for (const Candidate& other : choice.candidates) {
    if (others == 3) break;
    if (other.method == choice.method && other.quantized == choice.quantized) continue;
    text += fmt::format("{} {}{} {:.1f} us", others++ == 0 ? "; then" : ",", to_string(other.method),
                        other.quantized ? fmt::format(" in {}", name(format)) : "", other.seconds * 1e6);
  }
  return text;
}

// STRETTO_EXPLAIN: prints a line.
void explain(const std::string& communicator, const Call& call, const char* memory, const std::string& explanation) {
  const std::string line = fmt::format("stretto: {} of {} {} in '{}'{}: {}\n", name(call.collective), call.count,
                                       name(call.dtype), communicator, memory, explanation);
  std::fputs(line.c_str(), stderr);
}

}  // namespace

CallPlanner::CallPlanner(const Selector& selector, Links& links, FastPathLog& log, std::string communicator)
    : selector_(selector),
      links_(links),
      log_(log),
      communicator_(std::move(communicator)),
      nodes_(numbered_nodes(links.network(), links.membership().job_ranks)),
      node_sizes_(node_sizes_of(size())) {}

void CallPlanner::join_gpus(const GpuCollectives* whole) {
  has_gpu_links_ = true;
  whole_ = whole;
}

std::shared_ptr<const PlannedCall> CallPlanner::plan_for(const Call& call, const OperationOptions& options, Device device) {
  if (device == Device::cuda && has_equal_shares(call, size())) return plan_for(with_one_count(call), options, device);
  const Quantization& how = options.quantization;
  const PlanKey key{call.collective, options.method,      call.count, call.root,  call.dtype,         call.op,
                    call.counts,     call.receive_counts, how.format, how.result, how.only_if_faster, options.servers,
                    device};
  const std::lock_guard lock(mutex_);
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;
  std::shared_ptr<const PlannedCall> planned =
      device == Device::cuda ? plan_on_gpus(call, options) : plan_on_host(call, options);
  if (plans_.size() >= most_plans) plans_.clear();
  plans_.emplace(key, planned);
  return planned;
}

void CallPlanner::forget_plans() {
  const std::lock_guard lock(mutex_);
  plans_.clear();
}

void CallPlanner::check(const Call& call, const OperationOptions& options, Device device) {
  if (device == Device::cpu) {
    plan_for(call, options, device);
  } else {
    const PlanRequest request = as_chosen(request_of(call, options), choose_on_gpus(call, options, AssumedLinks::best));
    if (has_steps(request.method.algorithm)) make_plan(request);
  }
}

Estimate CallPlanner::estimate(const Call& call, const OperationOptions& options, Device device) {
  const bool on_gpus = device == Device::cuda;
  PlanRequest request;
  DType wire;
  if (on_gpus) {
    const Choice choice = choose_on_gpus(call, options, AssumedLinks::expected);
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
  estimate.seconds = selector_.seconds(request, wire, nodes_, on_gpus);
  request.count = std::min<std::int64_t>(request.count, 1);
  for (std::int64_t& count : request.counts) count = std::min<std::int64_t>(count, 1);
  estimate.overhead = std::min(estimate.seconds, selector_.seconds(request, wire, nodes_, on_gpus));
  return estimate;
}

NodeSizes CallPlanner::node_sizes_of(int first_ranks) const {
  const std::vector<int>& all = links_.membership().job_ranks;
  return node_sizes(links_.network(), {all.begin(), all.begin() + first_ranks}, links_.network().job().size());
}

PlanRequest CallPlanner::request_of(const Call& call, const OperationOptions& options) const {
  require(options.servers >= 0 && options.servers < size(),
          "{} on '{}' got {} servers, and {} ranks; leave at least one rank with a vector.", name(call.collective),
          communicator_, options.servers, size());
  const int with_vectors = size() - options.servers;
  PlanRequest request{call.collective, options.method, rank(),      with_vectors,
                      call.count,      call.root,      call.counts, call.receive_counts};
  request.servers = options.servers;
  const NodeSizes nodes = options.servers == 0 ? node_sizes_ : node_sizes_of(with_vectors);
  request.ranks_per_node = nodes.ranks_per_node;
  request.node_sizes = nodes.uneven;
  request.nodes_per_pod = nodes.nodes_per_pod;
  const Quantization& how = options.quantization;
  request.quantized = how.format;
  if (call.collective == Collective::all_reduce) {
    request.quantized_result = how.result == QuantizedFormat::none ? how.format : how.result;
  }
  return request;
}

std::shared_ptr<const PlannedCall> CallPlanner::plan_on_host(const Call& call, const OperationOptions& options) const {
  const PlanRequest request = request_of(call, options);
  const bool may_be_plain = options.quantization.only_if_faster;
  // The plan is then the same wherever the buffers are.
  const bool all_alike = links_.one_process() || !links_.shares_memory();
  auto planned = std::make_shared<PlannedCall>();
  planned->signature = call_signature(request, call.dtype, call.op);
  const auto choose = [&](bool symmetric) {
    return selector_.choose(request, call.dtype, call.op, nodes_, links_, symmetric, may_be_plain);
  };
  const Choice symmetric = choose(links_.shares_memory());
  const Choice ordinary = all_alike ? symmetric : choose(false);
  const bool same = symmetric.method == ordinary.method && symmetric.quantized == ordinary.quantized;
  planned->symmetric = variant_of(call, request, symmetric);
  planned->ordinary = same ? planned->symmetric : variant_of(call, request, ordinary);
  if (selector_.explains() && rank() == 0) {
    if (!same) explain(communicator_, call, ", symmetric memory", explanation_of(symmetric, request.quantized));
    explain(communicator_, call, "", explanation_of(ordinary, request.quantized));
  }
  return planned;
}

std::shared_ptr<const PlannedCall> CallPlanner::plan_on_gpus(const Call& call, const OperationOptions& options) const {
  const PlanRequest request = request_of(call, options);
  const Choice choice = choose_on_gpus(call, options, AssumedLinks::none);
  if (selector_.explains() && rank() == 0) explain(communicator_, call, "", explanation_of(choice, request.quantized));
  auto planned = std::make_shared<PlannedCall>();
  planned->ordinary = planned->symmetric = variant_of(call, request, choice);
  return planned;
}

Choice CallPlanner::choose_on_gpus(const Call& call, const OperationOptions& options, AssumedLinks assumed) const {
  const PlanRequest request = request_of(call, options);
  const GpuCollective collective{call.collective, nullptr, nullptr, call.count, call.dtype, call.op, call.root};
  bool whole = request.quantized == QuantizedFormat::none && request.counts.empty() && call.op != ReduceOp::premul_sum &&
               request.servers == 0;
  if (has_gpu_links_) {
    whole = whole && whole_ != nullptr && whole_->does(collective);
  } else {
    const bool by_links =
        assumed == AssumedLinks::best || (assumed == AssumedLinks::expected && expects_gpu_collectives(links_));
    whole = whole && by_links && may_be_done_whole(collective);
  }
  return selector_.choose_on_gpus(request, call.dtype, call.op, nodes_, whole, options.quantization.only_if_faster);
}

PlanVariant CallPlanner::variant_of(const Call& call, PlanRequest request, const Choice& choice) const {
  request = as_chosen(std::move(request), choice);
  const bool steps = has_steps(request.method.algorithm);
  return variant_with(call, steps ? make_plan(request) : Plan{.request = request}, choice.wire,
                      steps ? packet_bytes_of(request, choice.wire) : 0, false);
}

std::shared_ptr<const PlannedCall> CallPlanner::planned_of(const Call& call, const Plan& plan) const {
  Plan ruled = plan;
  ruled.request.method = rules_of(plan);
  const DType wire = wire_of(call.collective, ruled.request.method.algorithm, call.dtype, call.op);
  auto planned = std::make_shared<PlannedCall>();
  const auto name_hash = static_cast<std::uint16_t>(XXH3_64bits(plan.name.data(), plan.name.size()));
  planned->signature = call_signature(plan.request, call.dtype, call.op) ^ name_hash;
  planned->ordinary = planned->symmetric = variant_with(call, std::move(ruled), wire, 0, true);
  return planned;
}

PlanVariant CallPlanner::variant_with(const Call& call, Plan plan, DType wire, std::size_t packet_bytes, bool own) const {
  PlanVariant variant;
  variant.plan = std::make_shared<const Plan>(std::move(plan));
  variant.wire = wire;
  variant.packet_bytes = packet_bytes;
  const PlanRequest& request = variant.plan->request;
  Record record;
  record.collective = call.collective;
  record.method = own ? Algorithm::user : request.method;
  if (own) record.plan = variant.plan->name;
  record.group = communicator_;
  record.group_size = size();
  record.dtype = variant.wire;
  record.quantized = request.quantized;
  // The caller's count; with uneven shares, the larger of this rank's whole input and output.
  record.count = request.counts.empty() ? request.count : std::max(input_count(request), output_count(request));
  const auto width = static_cast<std::int64_t>(size_of(variant.wire));
  record.bytes_sent = static_cast<std::uint64_t>(variant.plan->bytes_sent(width));
  record.bytes_between_nodes = static_cast<std::uint64_t>(variant.plan->bytes_between_nodes(width, nodes_));
  record.partners = partners_of(*variant.plan, links_.membership());
  record.stream = Stream::inline_().name();
  if (has_root(call.collective) || is_message(call.collective)) record.root = call.root;
  variant.record = log_.keep(std::move(record));
  return variant;
}

}  // namespace stretto
