#include "stretto/communicator.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "collectives/calls/call_arguments.hpp"
#include "collectives/calls/user_plan.hpp"
#include "collectives/communicator/group.hpp"
#include "collectives/communicator/launched_group.hpp"
#include "collectives/communicator/operation_group.hpp"
#include "core/fail.hpp"
#include "device/gpu.hpp"
#include "stretto/device.hpp"

namespace stretto {
namespace {

Communicator::Group& existing(const std::shared_ptr<Communicator::Group>& group) {
  require(group != nullptr, "This communicator has no ranks: this rank was left out when it was made.");
  return *group;
}

// Whether a call's buffers are in host memory. A pointer into a GPU's memory counts even if the call has no elements there.
bool lies_on_host(const Call& call) {
  const auto on_gpu = [](const void* data) { return data != nullptr && gpu().is_device_memory(data); };
  return !gpu_in_use() || (!on_gpu(call.input) && !on_gpu(call.output));
}

// otherwise: the device of a call for which this rank has no buffers; the other ranks give streams of that device.
Device device_of(Communicator::Group& group, const Call& call, const OperationOptions& options, Device otherwise) {
  if (!gpu_in_use() || call.collective == Collective::barrier) return Device::cpu;
  const PlanRequest request = group.planner().request_of(call, options);
  check_shape(request);
  return device_of_buffers(call, request).value_or(otherwise);
}

OperationOptions with_site(OperationOptions options, const CallSite& site) {
  if (options.site.file == nullptr) options.site = site;
  return options;
}

// The members exchange bytes by operations of their own, which take their places in the order of calls.
std::vector<Bytes> exchange_bytes(const Communicator& members, const Bytes& mine) {
  const OutsideOperationGroups alone;
  const auto bytes = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(members.size()));
  members.all_gather(&bytes, sizes.data(), 1, DType::i64, Stream::inline_(), {.tag = "join GPUs"}).wait();
  Bytes all(static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})));
  members.all_gather_v(mine.data(), all.data(), sizes, DType::u8, Stream::inline_(), {.tag = "join GPUs"}).wait();
  std::vector<Bytes> result;
  auto from = all.begin();
  for (const std::int64_t size : sizes) {
    result.emplace_back(from, from + size);
    from += size;
  }
  return result;
}

// otherwise: as in device_of(). own: the caller's plan; null: the library makes one.
std::shared_ptr<const Operation::State> prepared(const Communicator& members,
                                                 const std::shared_ptr<Communicator::Group>& group, const Call& call,
                                                 const OperationOptions& options, const CallSite& site, Device otherwise,
                                                 const Plan* own = nullptr) {
  check_kind(call, options.quantization);
  auto state = std::make_shared<Operation::State>();
  state->group = group;
  state->call = call;
  state->options = with_site(options, site);
  if (call.collective == Collective::barrier) {  // reduces one element, whose value is not used
    const Tensor element({1}, DType::f32, Device::cpu);
    element.set(0, 0);
    state->call.input = state->call.output = element.raw();
    state->call.keep_alive = {element};
    state->call.dtype = DType::f32;
    state->call.count = 1;
  }
  state->device = device_of(*group, state->call, options, otherwise);
  if (state->device == Device::cuda) {
    group->join_gpus([&](const Bytes& mine) { return exchange_bytes(members, mine); });
  }
  state->planned = own != nullptr ? group->planner().planned_of(state->call, *own)
                                  : group->planner().plan_for(state->call, options, state->device);
  const PlanRequest& request = state->planned->ordinary.plan->request;
  check_buffers(state->call, request);
  check_factor(state->call, options.factor);
  if (options.quantization.errors != nullptr) {
    check_errors_apart(state->call, request, options.quantization.tensor, *state->quantizing());
  }
  return state;
}

// The call that a plan of the caller's own performs.
Call call_of(const Plan& plan, const Tensor& input, const Tensor& output, ReduceOp op) {
  const PlanRequest& request = plan.request;
  require(input.size() == input_count(request) && output.size() == output_count(request) &&
              (!input || !output || input.dtype() == output.dtype()),
          "The plan '{}' reads {} elements and writes {} on rank {}; it got an input of {} {} and an output of {} {}.",
          plan.name, input_count(request), output_count(request), request.rank, input.size(), name(input.dtype()),
          output.size(), name(output.dtype()));
  return {.collective = request.collective,
          .input = input.raw(),
          .output = output.raw(),
          .count = request.count,
          .dtype = (input || request.rank >= request.size ? input : output).dtype(),
          .op = op,
          .root = request.root,
          .counts = request.counts,
          .receive_counts = request.receive_counts,
          .keep_alive = {input, output}};
}

}  // namespace

Communicator::Group& Communicator::group() const {
  Group& members = existing(group_);
  members.check_process();
  return members;
}

int Communicator::rank() const { return existing(group_).rank(); }
int Communicator::size() const { return existing(group_).size(); }
const std::string& Communicator::name() const { return existing(group_).name(); }
const std::vector<int>& Communicator::nodes() const { return group().planner().nodes(); }
std::uint64_t Communicator::id() const { return group().membership().id; }

const std::vector<int>& Communicator::job_ranks() const { return group().membership().job_ranks; }
Job Communicator::job() const { return Job({group_, &group().context()}); }

std::string Communicator::choices() const {
  Group& members = group();
  const std::vector<int>& nodes = members.planner().nodes();
  return members.context().selector().choices(members.context().job().size(),
                                              1 + *std::max_element(nodes.begin(), nodes.end()));
}

std::string Communicator::choose_by(const std::string& choices) const {
  Group& members = group();
  require(
      size() == members.context().job().size() && members.shared_context().use_count() == 1,
      "choose_by() was called on '{}' of {} ranks, in a job of {}; call it on the communicator of all ranks, before other "
      "communicators are made.",
      name(), size(), members.context().job().size());
  const std::vector<int>& nodes = members.planner().nodes();
  std::string reason =
      members.context().selector().choose_by(choices, size(), 1 + *std::max_element(nodes.begin(), nodes.end()));
  members.forget_plans();
  return reason;
}

void Communicator::check_usable() const { group().turns().check_usable(); }
Operation Communicator::prepare(const Call& call, const OperationOptions& options, CallSite site) const {
  group();
  return Operation(prepared(*this, group_, call, options, site, current_device()));
}

Operation Communicator::prepare(const Plan& plan, const Tensor& input, const Tensor& output, ReduceOp op,
                                const OperationOptions& options, CallSite site) const {
  const PlanRequest& request = plan.request;
  require(request.rank == rank() && ranks_of(request) == size(),
          "The plan '{}' is for rank {} of {}, and this is rank {} of '{}' of {}.", plan.name, request.rank,
          ranks_of(request), rank(), name(), size());
  require(
      options.method == Algorithm::automatic && options.quantization.format == QuantizedFormat::none &&
          (options.servers == 0 || options.servers == request.servers),
      "The plan '{}' says how it is done, with {} servers; leave out OperationOptions::method, quantization and servers.",
      plan.name, request.servers);
  require(request.collective != Collective::barrier, "The plan '{}' is for a barrier; make it an all_reduce of one element.",
          plan.name);
  check_shape(request);
  check_plan(plan);
  const Algorithm rules = rules_of(plan);
  require(rules == Algorithm::user || group().shared_memory() != nullptr,
          "The plan '{}' has steps between memories, but the ranks of '{}' are on several hosts; let it send messages.",
          plan.name, name());
  OperationOptions as_user = options;
  as_user.method = Algorithm::user;
  as_user.servers = request.servers;
  auto state = prepared(*this, group_, call_of(plan, input, output, op), as_user, site, current_device(), &plan);
  require(rules == Algorithm::user || state->device == Device::cpu,
          "The plan '{}' has steps between memories, and its buffers are on a GPU; let it send messages.", plan.name);
  return Operation(std::move(state));
}

void Communicator::check(const Call& call, const OperationOptions& options) const {
  Group& members = group();
  check_kind(call, options.quantization);
  members.planner().check(call, options, device_of(members, call, options, current_device()));
  check_factor(call, options.factor);
}

Estimate Communicator::estimate(const Call& call, const OperationOptions& options) const {
  Group& members = group();
  check_kind(call, options.quantization);
  return members.planner().estimate(call, options, device_of(members, call, options, current_device()));
}

Work Communicator::start(const Call& call, const Stream& stream, const OperationOptions& options, CallSite site) const {
  Work work;  // the only one that is returned, so it is constructed in the caller's variable: see InlineFastPath::perform()
  InlineFastPath* const fast_path = group().fast_path(stream);
  if (fast_path != nullptr && !in_operation_group() && lies_on_host(call)) {
    if (fast_path->run(call, options, options.site.file != nullptr ? options.site : site, work)) return work;
  }
  const Group::OnlyCaller caller(*group_, call.collective);
  std::shared_ptr<const Operation::State> operation;
  try {
    operation = prepared(*this, group_, call, options, site, stream.device());
  } catch (const Error& refused) {
    if (!group_->context().checks_calls()) throw;
    try {
      launch_refusal(group_, call, with_site(options, site), refused.what(), stream);
    } catch (const Error& mismatch) {  // on an inline stream
      throw Error(refused.code(), std::string(refused.what()) + " " + mismatch.what());
    }
    throw;
  }
  if (fast_path != nullptr && operation->device == Device::cpu) fast_path->remember(*operation);
  work = Operation(operation).start(stream);
  return work;
}

Work Communicator::all_reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op,
                              const Stream& stream, const OperationOptions& options, CallSite site) const {
  return start({Collective::all_reduce, input, output, count, dtype, op}, stream, options, site);
}

Work Communicator::reduce_scatter(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op,
                                  const Stream& stream, const OperationOptions& options, CallSite site) const {
  return start({Collective::reduce_scatter, input, output, count, dtype, op}, stream, options, site);
}

Work Communicator::reduce_scatter_v(const void* input, void* output, const std::vector<std::int64_t>& counts, DType dtype,
                                    ReduceOp op, const Stream& stream, const OperationOptions& options,
                                    CallSite site) const {
  return start({Collective::reduce_scatter, input, output, 0, dtype, op, 0, counts}, stream, options, site);
}

Work Communicator::all_gather(const void* input, void* output, std::int64_t count, DType dtype, const Stream& stream,
                              const OperationOptions& options, CallSite site) const {
  return start({Collective::all_gather, input, output, count, dtype}, stream, options, site);
}

Work Communicator::all_gather_v(const void* input, void* output, const std::vector<std::int64_t>& counts, DType dtype,
                                const Stream& stream, const OperationOptions& options, CallSite site) const {
  return start({Collective::all_gather, input, output, 0, dtype, ReduceOp::sum, 0, counts}, stream, options, site);
}

Work Communicator::all_to_all(const void* input, void* output, std::int64_t count, DType dtype, const Stream& stream,
                              const OperationOptions& options, CallSite site) const {
  return start({Collective::all_to_all, input, output, count, dtype}, stream, options, site);
}

Work Communicator::all_to_all_v(const void* input, const std::vector<std::int64_t>& send_counts, void* output,
                                const std::vector<std::int64_t>& receive_counts, DType dtype, const Stream& stream,
                                const OperationOptions& options, CallSite site) const {
  return start({Collective::all_to_all, input, output, 0, dtype, ReduceOp::sum, 0, send_counts, receive_counts}, stream,
               options, site);
}

Work Communicator::broadcast(const void* input, void* output, std::int64_t count, DType dtype, int root,
                             const Stream& stream, const OperationOptions& options, CallSite site) const {
  return start({Collective::broadcast, input, output, count, dtype, ReduceOp::sum, root}, stream, options, site);
}

Work Communicator::reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, int root,
                          const Stream& stream, const OperationOptions& options, CallSite site) const {
  return start({Collective::reduce, input, output, count, dtype, op, root}, stream, options, site);
}

Work Communicator::gather(const void* input, void* output, std::int64_t count, DType dtype, int root, const Stream& stream,
                          const OperationOptions& options, CallSite site) const {
  return start({Collective::gather, input, output, count, dtype, ReduceOp::sum, root}, stream, options, site);
}

Work Communicator::gather_v(const void* input, void* output, const std::vector<std::int64_t>& counts, DType dtype, int root,
                            const Stream& stream, const OperationOptions& options, CallSite site) const {
  return start({Collective::gather, input, output, 0, dtype, ReduceOp::sum, root, counts}, stream, options, site);
}

Work Communicator::scatter(const void* input, void* output, std::int64_t count, DType dtype, int root, const Stream& stream,
                           const OperationOptions& options, CallSite site) const {
  return start({Collective::scatter, input, output, count, dtype, ReduceOp::sum, root}, stream, options, site);
}

Work Communicator::scatter_v(const void* input, void* output, const std::vector<std::int64_t>& counts, DType dtype, int root,
                             const Stream& stream, const OperationOptions& options, CallSite site) const {
  return start({Collective::scatter, input, output, 0, dtype, ReduceOp::sum, root, counts}, stream, options, site);
}

Work Communicator::barrier(const Stream& stream, const OperationOptions& options, CallSite site) const {
  return start({Collective::barrier}, stream, options, site);
}

Work Communicator::send(const void* data, std::int64_t count, DType dtype, int peer, const Stream& stream,
                        const OperationOptions& options, CallSite site) const {
  return start({Collective::send, data, nullptr, count, dtype, ReduceOp::sum, peer}, stream, options, site);
}

Work Communicator::recv(void* data, std::int64_t count, DType dtype, int peer, const Stream& stream,
                        const OperationOptions& options, CallSite site) const {
  return start({Collective::recv, nullptr, data, count, dtype, ReduceOp::sum, peer}, stream, options, site);
}

Work Communicator::send_recv(const void* input, std::int64_t send_count, int to, void* output, std::int64_t receive_count,
                             int from, DType dtype, const Stream& stream, const OperationOptions& options,
                             CallSite site) const {
  OperationGroup both;
  std::ignore = send(input, send_count, dtype, to, stream, options, site);
  std::ignore = recv(output, receive_count, dtype, from, stream, options, site);
  return both.end();
}

Communicator Communicator::split(int color, int key, const std::string& name) const {
  struct SplitRequest {  // a multiple of 8 bytes: it travels as f64, which an all-gather does not touch
    std::int64_t color, key;
    Group::Place place;
  };
  RankContext& context = group().context();
  require(!in_operation_group(),
          "'{}' cannot be made inside a group of operations, which only collects calls; end it first.", name);
  const SplitRequest mine{color, key, Group::reserve_place(context, size())};
  std::vector<SplitRequest> requests(size());
  constexpr std::int64_t words = sizeof(SplitRequest) / sizeof(double);
  // If this fails, the place stays reserved: a member for which it did not fail may use it.
  all_gather(&mine, requests.data(), words, DType::f64, Stream::inline_(), {.tag = "split"}).wait();

  std::vector<int> members;  // as ranks of this communicator
  for (int rank = 0; rank < size(); ++rank) {
    if (requests[rank].color == color) members.push_back(rank);
  }
  if (color < 0) {
    context.network().segment().release(mine.place.area, Links::area_bytes(size()));
    return {};
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return requests[a].key < requests[b].key; });
  std::vector<Group::Place> places;
  places.reserve(members.size());
  for (const int member : members) places.push_back(requests[member].place);
  return Communicator(Group::at_places(group_->shared_context(), places, size(), name));
}

Communicator Communicator::duplicate(const std::string& name) const { return split(0, rank(), name); }

Communicator Communicator::subgroup(const std::vector<int>& ranks, const std::string& name) const {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    require(ranks[i] >= 0 && ranks[i] < size(), "Rank {} is outside communicator '{}' of {}.", ranks[i], this->name(),
            size());
    require(std::find(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(i), ranks[i]) ==
                ranks.begin() + static_cast<std::ptrdiff_t>(i),
            "Rank {} is listed twice for '{}'.", ranks[i], name);
  }
  const auto place = std::find(ranks.begin(), ranks.end(), rank());
  return split(place == ranks.end() ? -1 : 0, static_cast<int>(place - ranks.begin()), name);
}

Communicator Communicator::node() const { return split(nodes()[rank()], rank(), name() + ".node"); }

Communicator Communicator::node_leaders() const {
  const std::vector<int>& all = nodes();
  const bool leads = std::find(all.begin(), all.end(), all[rank()]) - all.begin() == rank();
  return split(leads ? 0 : -1, rank(), name() + ".node_leaders");
}

}  // namespace stretto
