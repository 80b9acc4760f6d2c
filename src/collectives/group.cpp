#include "collectives/group.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <numeric>

#include "collectives/at_once.hpp"
#include "collectives/bundle.hpp"
#include "collectives/plan_builder.hpp"
#include "core/fail.hpp"
#include "core/setting_values.hpp"
#include "transport/nccl/nccl_links.hpp"

namespace stretto {
namespace {

// By first appearance.
template <class Key>
std::vector<int> numbered(const std::vector<Key>& keys) {
  std::map<Key, int> numbers;
  std::vector<int> result;
  for (const Key& key : keys) {
    result.push_back(numbers.emplace(key, static_cast<int>(numbers.size())).first->second);
  }
  return result;
}

std::vector<int> numbered_nodes(const Network& network, const std::vector<int>& job_ranks) {
  std::vector<std::uint64_t> nodes;
  for (const int rank : job_ranks) nodes.push_back(network.node_of(rank));
  return numbered(nodes);
}

// How often each number stands there, if they come in order; else nothing.
std::vector<int> runs_of(const std::vector<int>& numbers) {
  std::vector<int> runs;
  for (const int number : numbers) {
    if (number == static_cast<int>(runs.size())) runs.push_back(0);
    if (number + 1 != static_cast<int>(runs.size())) return {};
    ++runs.back();
  }
  return runs;
}

bool all_equal(const std::vector<int>& numbers) {
  return std::adjacent_find(numbers.begin(), numbers.end(), std::not_equal_to<>()) == numbers.end();
}

// The nodes of one pod are neighbours among all nodes of the job, in the order of ranks.
NodeSizes node_sizes(const Network& network, const std::vector<int>& job_ranks, int job_size) {
  NodeSizes sizes;
  const std::vector<int> runs = runs_of(numbered_nodes(network, job_ranks));
  if (runs.empty()) return sizes;
  if (all_equal(runs))
    sizes.ranks_per_node = runs.front();
  else
    sizes.uneven = runs;

  const auto per_pod = static_cast<std::int64_t>(number_setting("STRETTO_NODES_PER_POD"));
  if (per_pod == 0) return sizes;
  std::vector<int> everybody(static_cast<std::size_t>(job_size));
  std::iota(everybody.begin(), everybody.end(), 0);
  const std::vector<int> nodes = numbered_nodes(network, everybody);
  const int count = *std::max_element(nodes.begin(), nodes.end()) + 1;
  require(count % per_pod == 0, "STRETTO_NODES_PER_POD={} does not divide the {} nodes of the job; choose a divisor.",
          per_pod, count);
  std::vector<int> pods;
  std::size_t first = 0;
  for (const int members : runs) {
    pods.push_back(static_cast<int>(nodes[static_cast<std::size_t>(job_ranks[first])] / per_pod));
    first += static_cast<std::size_t>(members);
  }
  const std::vector<int> in_pods = runs_of(numbered(pods));
  if (!in_pods.empty() && all_equal(in_pods)) sizes.nodes_per_pod = in_pods.front();
  return sizes;
}

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

RankContext::RankContext(std::unique_ptr<Job> job, bool may_pin)
    : job_(std::move(job)),
      checks_calls_(number_setting("STRETTO_CHECK") != 0),
      exceptions_at_start_(std::uncaught_exceptions()) {
  try {
    network_ = std::make_unique<Network>(*job_, may_pin);
    selector_ = std::make_unique<Selector>(*job_, *network_);
  } catch (const std::exception& error) {
    job_->abort(error.what());
    throw;
  }
}

RankContext::~RankContext() {
  if (std::uncaught_exceptions() > exceptions_at_start_) job_->abort("an exception ended it.");
  job_->leave(leave_timeout_);
}

Communicator::Group::Group(std::shared_ptr<RankContext> context, Membership membership, int area_members, std::string name)
    : context_(std::move(context)),
      links_(context_->network(), std::move(membership), area_members),
      call_check_(context_->network(), links_),
      name_(std::move(name)),
      journal_(std::make_shared<Journal>(context_->ledger().most_records())),
      nodes_(numbered_nodes(context_->network(), links_.membership().job_ranks)),
      node_sizes_(node_sizes(context_->network(), links_.membership().job_ranks, context_->job().size())) {
  if (links_.shares_memory()) shared_memory_ = std::make_unique<SharedMemory>(links_);
  if (shared_memory_ && !context_->checks_calls()) at_once_ = std::make_unique<AtOnce>(*this);
  context_->ledger().add(journal_);
}

// The links' end is collective: who leaves in trouble must not wait there for those who wait for him.
Communicator::Group::~Group() {
  if (!gpu_links_ || !ends_in_trouble()) return;
  gpu_watch_->give_up(std::make_exception_ptr(
      Error(ErrorCode::peer_gave_up,
            fmt::format("Communicator '{}' was left by rank {} after an error.", name_, context_->job().rank()))));
}

bool Communicator::Group::ends_in_trouble() {
  if (broken_ || std::uncaught_exceptions() > exceptions_at_start_) return true;
  try {
    context_->job().check();
  } catch (const std::exception&) {
    return true;
  }
  return false;
}

void Communicator::Group::give_up() {
  const std::lock_guard lock(mutex_);
  broken_ = true;
  turn_changed_.notify_all();
}

void Communicator::Group::check_usable() const {
  context_->job().check();  // says more, if that is why
  if (broken_) fail(ErrorCode::internal, "Communicator '{}' is unusable since an earlier operation on it failed.", name_);
}

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

Way Communicator::Group::way_of(const Call& call, PlanRequest request, bool may_be_plain, bool symmetric) const {
  const Choice choice = context_->selector().choose(request, call.dtype, call.op, nodes_, links_, symmetric, may_be_plain);
  if (context_->selector().explains() && rank() == 0) explain(name_, call, request.quantized, choice, symmetric);
  return way_of(call, std::move(request), choice);
}

Way Communicator::Group::way_of(const Call& call, PlanRequest request, const Choice& choice) const {
  request = as_chosen(std::move(request), choice);
  const bool has_steps = request.method.algorithm != Algorithm::nccl;
  Way way{std::make_shared<const Plan>(has_steps ? make_plan(request) : Plan{.request = request}), choice.wire, nullptr,
          has_steps ? packet_bytes_of(request, choice.wire) : 0};
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
  way.label = journal_->keep(std::move(label));
  return way;
}

// The members tell each other by operations of their own, which have their places in the order of calls.
void Communicator::Group::join_gpus() {
  const std::lock_guard lock(joining_);
  if (gpu_links_) return;
  const Communicator members(std::shared_ptr<Group>(std::shared_ptr<Group>(), this));
  const OutsideOperationGroups alone;
  const TellAll tell_all = [&](const Bytes& mine) {
    std::int64_t bytes = static_cast<std::int64_t>(mine.size());
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(size()));
    members.all_gather(&bytes, sizes.data(), 1, DType::i64, Stream::inline_(), {.tag = "join GPUs"});
    Bytes all(static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})));
    members.all_gather_v(mine.data(), all.data(), sizes, DType::u8, Stream::inline_(), {.tag = "join GPUs"});
    std::vector<Bytes> result;
    auto from = all.begin();
    for (const std::int64_t each : sizes) {
      result.emplace_back(from, from + each);
      from += each;
    }
    return result;
  };
  std::unique_ptr<GpuLinks> links = make_gpu_links(links_, gpu(), tell_all);
  gpu_watch_ = std::make_unique<GpuWatch>(context_->job(), *links, context_->network().timeout(), [this] { give_up(); });
  gpu_links_ = std::move(links);
}

Communicator::Group::Turn::Turn(std::shared_ptr<Group> group) : group_(std::move(group)) {
  const std::lock_guard lock(group_->mutex_);
  number_ = group_->next_turn_++;
}

Communicator::Group::Turn::~Turn() {
  if (!done_) finish(true);
}

void Communicator::Group::Turn::wait() {
  const auto is_now = [&] { return group_->current_turn_ == number_ || group_->broken_; };
  std::unique_lock lock(group_->mutex_);
  // What it waits for ends by itself, in time or with an error; the job may also end before.
  while (!group_->turn_changed_.wait_for(lock, std::chrono::milliseconds(200), is_now)) {
    lock.unlock();
    group_->context_->job().check();
    lock.lock();
  }
  if (group_->broken_) {
    lock.unlock();
    group_->check_usable();
  }
}

void Communicator::Group::Turn::finish(bool failed) {
  done_ = true;
  const std::lock_guard lock(group_->mutex_);
  if (failed) group_->broken_ = true;
  ++group_->current_turn_;
  group_->turn_changed_.notify_all();
}

Communicator world_of(std::unique_ptr<Job> job, bool may_pin, const std::string& name) {
  const int rank = job->rank();
  const int size = job->size();
  auto context = std::make_shared<RankContext>(std::move(job), may_pin);
  Membership membership;
  membership.rank = rank;
  const std::uint64_t area = context->network().segment().reserve(Links::area_bytes(size));
  const auto* bytes = reinterpret_cast<const std::byte*>(&area);
  for (const Bytes& part : context->job().exchange(Bytes(bytes, bytes + sizeof area))) {
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, part.data(), sizeof theirs);
    membership.areas.push_back(theirs);
    membership.job_ranks.push_back(static_cast<int>(membership.job_ranks.size()));
  }
  return Communicator(std::make_shared<Communicator::Group>(std::move(context), std::move(membership), size, name));
}

}  // namespace stretto
