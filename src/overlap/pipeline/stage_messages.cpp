#include "overlap/pipeline/stage_messages.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "core/fail.hpp"
#include "core/parts.hpp"
#include "device/memory/range.hpp"
#include "device/rehearsal_mode.hpp"
#include "device/stream/abandoned_work.hpp"
#include "overlap/exchange.hpp"
#include "stretto/device.hpp"
#include "stretto/memory.hpp"

namespace stretto {
namespace {

bool in_one_node(const Communicator& group) {
  const std::vector<int>& nodes = group.nodes();
  return std::all_of(nodes.begin(), nodes.end(), [&](int node) { return node == nodes.front(); });
}

const char* tag_of(bool forward) { return forward ? "activations" : "gradients of activations"; }

}  // namespace

StageMessages::StageMessages(const Communicator& stages, const Schedule& schedule, const Communicator& tensor, bool overlap)
    : stages_(stages),
      tensor_(tensor),
      stage_(stages.rank()),
      may_be_ahead_(overlap && current_device() == Device::cpu),
      steps_(&schedule),
      plans_of_steps_(is_window(schedule) ? std::map<Route, ReceivePlan>() : receive_plans(schedule, stage_)) {
  if (stages.size() > 1) make_channels(schedule, overlap);
}

void StageMessages::make_channels(const Schedule& schedule, bool overlap) {
  std::set<Route> all;
  for (int part = 0; part + 1 < schedule.parts(); ++part) {
    const int from = schedule.stage_of(part);
    const int to = schedule.stage_of(part + 1);
    if (from != to) all.insert({{from, to, true}, {to, from, false}});
  }
  const std::vector<Route> routes(all.begin(), all.end());
  const std::vector<double> scattered = which_scatter(routes);
  // A GPU performs the operations of a group one communicator after the other, in the order of their streams. All messages
  // of a group must begin together.
  const bool on_gpu = current_device() == Device::cuda;
  const Communicator of_all = on_gpu ? stages_.duplicate(stages_.name()) : Communicator();
  const Stream in_order = on_gpu && overlap ? Stream("pp messages", Priority::urgent) : computation();
  for (std::size_t i = 0; i < routes.size(); ++i) {
    const auto [from, to, forward] = routes[i];
    Channel channel{.group = on_gpu ? of_all : stages_.subgroup({from, to}, stages_.name()),
                    .from = on_gpu ? from : 0,
                    .to = on_gpu ? to : 1,
                    .gather = {},
                    .scattered = scattered[i] > 0};
    if (from != stage_ && to != stage_) continue;
    if (channel.scattered && to == stage_) channel.gather = tensor_.duplicate(tensor_.name() + " messages");
    channel.stream = overlap && !on_gpu
                         ? Stream(fmt::format("pp {} {}", tag_of(forward), from == stage_ ? "out" : "in"), Priority::urgent)
                         : in_order;
    channels_.emplace(routes[i], std::move(channel));
  }
}

// 1 for routes between nodes, if all tensor-parallel groups lie within nodes; else 0. The least over the ranks of a stage,
// and then over the stages, is the same for all ranks, each of which sees its own pipeline and its own tensor-parallel
// group.
std::vector<double> StageMessages::which_scatter(const std::vector<Route>& routes) const {
  std::vector<double> result(routes.size(), 0);
  if (!tensor_ || tensor_.size() == 1) return result;
  const bool together = in_one_node(tensor_);
  for (std::size_t i = 0; i < routes.size(); ++i) {
    result[i] = together && stages_.nodes()[routes[i].from] != stages_.nodes()[routes[i].to] ? 1 : 0;
  }
  for (const Communicator& group : {tensor_, stages_}) {
    group
        .all_reduce(result.data(), result.data(), static_cast<std::int64_t>(result.size()), DType::f64, ReduceOp::min,
                    Stream::inline_(), {.tag = "routes"})
        .wait();
  }
  return result;
}

// ---- a step

void StageMessages::begin(const Schedule& schedule, const Shape& shape, DType dtype) {
  schedule_ = &schedule;
  shape_ = shape;
  dtype_ = dtype;
  // A rank that waits for each operation at once would wait for a message that its neighbour cannot send yet.
  ahead_ = may_be_ahead_ && !rehearsal_mode.no_overlap;
  if (&schedule != steps_) other_plans_ = receive_plans(schedule, stage_);
  std::map<Route, ReceivePlan>& plans = &schedule == steps_ ? plans_of_steps_ : other_plans_;
  for (auto& [route, channel] : channels_) {
    channel.plan = &plans[route];
    channel.begun = channel.used = 0;
    if (ahead_) receive_until(channel, channel.plan->most);
  }
}

StageMessages::Place StageMessages::place_of_input(const Action& computation) const {
  return {schedule_->part_of(stage_, computation.chunk), goes_forward(computation.kind), computation.microbatch};
}

StageMessages::Channel& StageMessages::channel_of(const Action& message) {
  const int peer = schedule_->peer_of(stage_, message);
  const bool sends = is_send(message.kind);
  return channels_.at({sends ? stage_ : peer, sends ? peer : stage_, goes_forward(message.kind)});
}

Tensor StageMessages::take_input(const Action& action) {
  const auto found = inputs_.find(place_of_input(action));
  if (found == inputs_.end()) return {};
  const Input input = std::move(found->second);
  inputs_.erase(found);
  computation().wait(input.arrived);
  const int from = schedule_->stage_of(part_before(*schedule_, stage_, action));
  const auto channel = channels_.find({from, stage_, goes_forward(action.kind)});
  if (channel != channels_.end()) {
    ++channel->second.used;
    if (ahead_) receive_until(channel->second, channel->second.used + channel->second.plan->most);
  }
  return input.tensor;
}

void StageMessages::give_result(const Action& action, Tensor result) {
  if (action.kind == ActionKind::backward_weight) return;
  const bool forward = goes_forward(action.kind);
  const int part = part_after(*schedule_, stage_, action);
  if (part < 0 || part >= schedule_->parts()) return;
  require(result.shape() == shape_ && result.dtype() == dtype_,
          "Stage {} has a result of [{}] {} for {}, but a pipeline's messages are [{}] {}.", stage_,
          fmt::join(result.shape(), ", "), name(result.dtype()), to_string(action), fmt::join(shape_, ", "), name(dtype_));
  const Place place{part, forward, action.microbatch};
  if (schedule_->stage_of(part) == stage_) {
    inputs_[place] = {std::move(result), {}};
  } else {
    results_[place] = std::move(result);
  }
}

void StageMessages::start(const ActionGroup& group) {
  std::optional<OperationGroup> together;
  if (!ahead_) together.emplace();
  for (const Action& action : group) {
    Channel& channel = channel_of(action);
    if (is_send(action.kind)) send(channel, action);
    if (!is_send(action.kind) && !ahead_) receive_until(channel, channel.begun + 1);
  }
  if (!together) return;
  std::ignore = together->end();
  for (const Action& action : group) {
    if (!is_send(action.kind)) gather(channel_of(action), inputs_.at(place_of_input(action)));
  }
}

void StageMessages::abandon() noexcept {
  std::vector<Work> begun;
  for (const auto& [place, input] : inputs_) begun.push_back(input.arrived);
  for (const auto& [route, channel] : channels_) begun.push_back(channel.sent);
  for (const Work& work : begun) wait_for_abandoned("A message between stages", [&] { work.wait(); });
}

// ---- messages

Tensor StageMessages::share(const Channel& channel, const Tensor& whole) const {
  if (!channel.scattered) return whole;
  const int ranks = tensor_.size();
  return rows_of(whole, part_begin(whole.rows(), ranks, tensor_.rank()), part_size(whole.rows(), ranks, tensor_.rank()));
}

void StageMessages::send(Channel& channel, const Action& message) {
  const bool forward = goes_forward(message.kind);
  auto result = results_.extract({part_after(*schedule_, stage_, message), forward, message.microbatch});
  const ProfilerRange range([&] { return to_string(message); });
  // The schedule lets a stage go on when its message has been received. Without this wait, the results of a stage that is
  // faster than the next one would pile up here.
  computation().wait(channel.sent);
  channel.stream.wait(computation());
  channel.sent =
      exchange(channel.group, share(channel, result.mapped()), channel.to, {}, -1, channel.stream, tag_of(forward));
}

void StageMessages::receive_until(Channel& channel, std::size_t count) {
  for (; channel.begun < std::min(count, channel.plan->receives.size()); ++channel.begun) {
    const Action& message = channel.plan->receives[channel.begun];
    const ProfilerRange range([&] { return to_string(message); });
    const MemoryScope activations(MemoryKind::activations);
    Input& input = inputs_[place_of_input(message)];
    input.tensor = Tensor::symmetric(shape_, dtype_);
    input.arrived = exchange(channel.group, {}, -1, share(channel, input.tensor), channel.from, channel.stream,
                             tag_of(goes_forward(message.kind)));
    if (ahead_) gather(channel, input);
  }
}

void StageMessages::gather(Channel& channel, Input& input) {
  if (!channel.scattered) return;
  const Tensor& whole = input.tensor;
  std::vector<std::int64_t> counts = part_sizes(whole.rows(), tensor_.size());
  for (std::int64_t& count : counts) count *= whole.columns();
  input.arrived =
      channel.gather.all_gather_v(share(channel, whole), whole, counts, channel.stream, {.tag = "scattered messages"});
}

double StageMessages::seconds_of_send(const Shape& shape, DType dtype) const {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  double most = 0;
  for (const auto& [route, channel] : channels_) {
    if (route.from != stage_) continue;
    const std::int64_t count = channel.scattered ? elements / tensor_.size() : elements;
    double seconds =
        channel.group.estimate({Collective::send, nullptr, nullptr, count, dtype, ReduceOp::sum, channel.to}).seconds;
    if (channel.scattered) seconds += tensor_.estimate({Collective::all_gather, nullptr, nullptr, count, dtype}).seconds;
    most = std::max(most, seconds);
  }
  return most;
}

void StageMessages::finish() {
  for (auto& [route, channel] : channels_) computation().wait(std::exchange(channel.sent, {}));
  ensure(inputs_.empty() && results_.empty(), "A pipeline's step leaves {} inputs and {} results.", inputs_.size(),
         results_.size());
}

}  // namespace stretto
