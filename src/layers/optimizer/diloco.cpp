#include "stretto/layers/diloco.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "layers/checkpoint/quantization_state.hpp"
#include "layers/first_of_copies.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {

void DiLoCoOptions::check() const {
  require(replicas >= 1, "A job cannot have {} replicas; give at least 1.", replicas);
  if (!any()) return;
  require(sync_every >= 1 && fragments >= 1,
          "Replicas cannot agree every {} steps in {} fragments; both must be at least 1.", sync_every, fragments);
  require(sync_every % fragments == 0,
          "{} fragments do not divide the {} steps of a round, in which each is exchanged once; give a divisor.", fragments,
          sync_every);
  require(fragment_sync_delay >= 0 && fragment_sync_delay < interval(),
          "A fragment that arrives {} steps after it was sent is not there before the next one is sent, {} steps after it; "
          "give a shorter delay, a longer round or fewer fragments.",
          fragment_sync_delay, interval());
  require(fragment_update_alpha >= 0 && fragment_update_alpha <= 1,
          "A share of {} of the local values is not from 0 to 1, the weight of a mean.", fragment_update_alpha);
  require(lr > 0, "An outer learning rate of {} changes nothing or climbs; give one above 0, such as 0.7.", lr);
  require(momentum >= 0 && momentum < 1, "An outer momentum of {} adds up without end; give 0 or more, below 1.", momentum);
  require(format == QuantizedFormat::none || format == QuantizedFormat::int8 || format == QuantizedFormat::int4,
          "Changes of weights do not travel in {}; choose none, int8 or int4.", name(format));
}

std::optional<int> DiLoCoOptions::sent_at(std::int64_t step) const {
  if (!any() || step <= 0 || step % interval() != 0) return std::nullopt;
  return static_cast<int>((step / interval() - 1) % fragments);
}

std::vector<StateSlot> DiLoCoOptions::slots() const {
  std::vector<StateSlot> result;
  if (any()) result.push_back({"outer"});
  if (any() && momentum != 0) result.push_back({"outer_momentum"});
  return result;
}

namespace {

// A checkpoint of a former version has errors of copies, too, among others.
void drop_errors_of_other_sizes(ErrorFeedback& errors, const std::map<std::string, std::int64_t>& sizes) {
  const std::vector<ErrorFeedback::Entry> entries = errors.entries();
  std::set<std::string> others;
  for (const ErrorFeedback::Entry& entry : entries) {
    const auto size = sizes.find(entry.tensor);
    if (size == sizes.end() || entry.hop != Hop::contribution || entry.values.size() == size->second) continue;
    log().warn("The errors '{}' are of {} elements, of which {} are quantized now: the run goes on without them.",
               entry.tensor, entry.values.size(), size->second);
    others.insert(entry.tensor);
  }
  if (others.empty()) return;
  errors.clear();
  for (const ErrorFeedback::Entry& entry : entries) {
    if (!others.contains(entry.tensor)) errors.restore(entry.tensor, entry.hop, entry.values);
  }
}

}  // namespace

// A parameter belongs where its middle lies.
std::vector<int> fragments_of(const Parameters& parameters, int fragments) {
  std::int64_t all = 0;
  for (const auto& parameter : parameters.all()) all += parameter->trainable ? parameter->global_elements() : 0;
  std::vector<int> result;
  std::vector<bool> has_some(static_cast<std::size_t>(fragments), false);
  std::int64_t before = 0;
  for (const auto& parameter : parameters.all()) {
    result.push_back(-1);
    if (!parameter->trainable) continue;
    const double middle = static_cast<double>(before) + static_cast<double>(parameter->global_elements()) / 2;
    const int place = static_cast<int>(middle / static_cast<double>(all) * fragments);
    result.back() = std::min(place, fragments - 1);
    has_some[static_cast<std::size_t>(result.back())] = true;
    before += parameter->global_elements();
  }
  const auto empty = std::ranges::find(has_some, false);
  require(empty == has_some.end(),
          "Cut into {} fragments, the model's {} parameters leave fragment {} without one; give fewer.", fragments,
          parameters.all().size(), empty - has_some.begin());
  return result;
}

ReplicaGroups split_into_replicas(const Communicator& world, int replicas) {
  require(replicas >= 1 && world.size() % replicas == 0, "{} replicas do not divide {} ranks.", replicas, world.size());
  const int ranks = world.size() / replicas;
  ReplicaGroups groups;
  groups.replica = world.split(world.rank() / ranks, world.rank(), "replica");
  groups.peers = world.split(world.rank() % ranks, world.rank(), "diloco");
  return groups;
}

DiLoCo::DiLoCo(ShardedParameters& parameters, Optimizer& optimizer, const Communicator& peers, const DiLoCoOptions& options)
    : parameters_(parameters),
      optimizer_(optimizer),
      peers_(peers),
      options_(options),
      slot_(optimizer.kind().slots.size()),
      fragments_(static_cast<std::size_t>(std::max(options.fragments, 1))),
      stream_(options.fragment_sync_delay > 0 ? Stream("diloco", Priority::background) : computation()) {
  options.check();
  require(peers.size() == options.replicas, "{} replicas exchange their changes, but a rank has {} peers, itself included.",
          options.replicas, peers.size());
  const std::vector<int> fragment_of = fragments_of(parameters.parameters(), options.fragments);
  for (const bool copied : {false, true}) {
    for (std::size_t i = 0; i < parameters.ranges().size(); ++i) {
      const ShardedParameters::Range& range = parameters.ranges()[i];
      if (!range.gradient || !range.in_share) continue;
      const Parameter& parameter = *parameters.parameters().all()[range.parameter];
      if (copied == copied_over(parameter, parameters.mesh().shape()).empty()) continue;
      Fragment& fragment = fragments_[static_cast<std::size_t>(fragment_of[range.parameter])];
      fragment.parts.push_back({i, fragment.elements});
      fragment.elements += range.count;
      if (copied) fragment.copied += range.count;
    }
  }
  // Also those of which this rank has nothing in its share: all ranks of a unit bring it to each other.
  for (const auto& parameter : parameters.parameters().all()) {
    if (!parameter->is_here || !parameter->trainable) continue;
    std::vector<std::size_t>& units = fragments_[static_cast<std::size_t>(fragment_of[parameter->index])].units;
    const std::size_t unit = parameters.unit_of(*parameter);
    if (std::ranges::find(units, unit) == units.end()) units.push_back(unit);
  }
  optimizer.add_slots(options.slots());
}

DiLoCo::~DiLoCo() {
  try {
    if (in_flight_) exchange_.wait();
  } catch (const std::exception& error) {
    log().error("The changes of the replicas were not exchanged: {}", error.what());
  }
}

std::vector<std::int64_t> DiLoCo::elements() const {
  std::vector<std::int64_t> result;
  for (const Fragment& fragment : fragments_) result.push_back(fragment.elements);
  return result;
}

void DiLoCo::begin_step() {
  if (std::exchange(has_begun_, true)) return;
  std::map<std::string, std::int64_t> quantized;
  for (std::size_t i = 0; i < fragments_.size(); ++i) {
    quantized[outer_errors_name(i)] = fragments_[i].elements - fragments_[i].copied;
  }
  drop_errors_of_other_sizes(parameters_.errors(), quantized);
  if (optimizer_.steps() == 0) {
    for (std::size_t i = 0; i < optimizer_.states().size(); ++i) {
      if (master(i)) outer(i).copy_from(master(i));
      optimizer_.release_behind(i);
    }
  }
  compare_with_peers();
}

void DiLoCo::compare_with_peers() const {
  std::uint64_t mine = 0;
  for (const Fragment& fragment : fragments_) {
    for (const Part& part : fragment.parts) {
      const Tensor values = outer(part.range).on(Device::cpu);
      mine = XXH3_64bits_withSeed(values.raw(), values.bytes(), mine);
      release_behind(fragment, part);
    }
  }
  std::vector<std::uint64_t> all(static_cast<std::size_t>(peers_.size()));
  peers_.all_gather(&mine, all.data(), 1, DType::u64, Stream::inline_(), {.tag = "weights of replicas"}).wait();
  const auto other = std::ranges::find_if(all, [&](std::uint64_t its) { return its != all.front(); });
  require(other == all.end(),
          "Replica {} begins with other weights than replica 0, and would stay apart from it; give all the same seed, files "
          "or checkpoint.",
          other - all.begin());
}

void DiLoCo::release_behind(const Fragment& fragment, const Part& part) const {
  const auto unit_of = [&](const Part& its) { return parameters_.ranges()[its.range].unit; };
  if (&part != &fragment.parts.back() && unit_of(*(&part + 1)) == unit_of(part)) return;
  optimizer_.release(unit_of(part));
}

void DiLoCo::end_step() {
  const std::int64_t step = optimizer_.steps();
  if (const std::optional<int> sent = options_.sent_at(step)) send(*sent);
  const std::optional<int> merged = options_.merged_at(step);
  if (!merged) return;
  settle();
  merge(at(*merged));
}

void DiLoCo::send(int number) {
  const Fragment& fragment = at(number);
  if (fragment.elements == 0) return;
  const DType wide = kernels::accumulator(parameters_.options().dtype);
  {
    const MemoryScope buffers(MemoryKind::buffers);
    change_ = Tensor({fragment.elements}, wide);
  }
  for (const Part& part : fragment.parts) {
    const Tensor its = change_.view(part.first, outer(part.range).shape());
    its.copy_from(master(part.range));
    kernels::scale(its, -1);
    kernels::add(outer(part.range), its, its);
    release_behind(fragment, part);
  }
  OperationOptions how{.method = Algorithm::two_shot, .tag = "changes of weights"};
  stream_.wait(computation());
  std::int64_t sent = 0;
  if (options_.format != QuantizedFormat::none && fragment.elements > fragment.copied) {
    sent = fragment.elements - fragment.copied;
    OperationOptions quantized = how;
    quantized.quantization = {.format = options_.format,
                              .errors = &parameters_.errors(),
                              .tensor = outer_errors_name(static_cast<std::size_t>(number))};
    exchange_ = peers_.all_reduce(change_.view(0, {sent}), ReduceOp::avg, stream_, quantized);
  }
  const std::int64_t rest = fragment.elements - sent;
  if (rest > 0) exchange_ = peers_.all_reduce(change_.view(sent, {rest}), ReduceOp::avg, stream_, how);
  in_flight_ = number;
}

// The outer values of a fragment in flight are not read before it is merged, so that any time until then will do.
void DiLoCo::settle() {
  if (!in_flight_) return;
  computation().wait(exchange_);
  for (const Part& part : at(*in_flight_).parts) {
    const Tensor change = change_.view(part.first, outer(part.range).shape());
    const Tensor& value = outer(part.range);
    // Nesterov's step: along the new momentum, and then along the change.
    if (options_.momentum != 0) {
      const Tensor& momentum = optimizer_.states()[part.range].slots[slot_ + 1];
      kernels::sgd({.lr = options_.lr * options_.momentum, .momentum = options_.momentum}, change, value, momentum, value);
    }
    kernels::sgd({.lr = options_.lr, .momentum = 0}, change, value, Tensor(), value);
    release_behind(at(*in_flight_), part);
  }
  in_flight_.reset();
  change_ = Tensor();
}

void DiLoCo::merge(const Fragment& fragment) {
  parameters_.wait_for_values();
  const MemoryScope buffers(MemoryKind::buffers);
  const double alpha = options_.fragment_update_alpha;
  for (const Part& part : fragment.parts) {
    const Tensor& local = master(part.range);
    if (alpha == 0) {
      local.copy_from(outer(part.range));
    } else {
      const Tensor global = outer(part.range).clone();  // the outer value itself must stay
      kernels::scale(global, 1 - alpha);
      kernels::scale(local, alpha);
      kernels::add(global, local, local);
    }
    release_behind(fragment, part);
  }
  for (const std::size_t unit : fragment.units) share(unit);
}

// At ZeRO stage 0 ranks hold the master weights of each other's shares, which travel instead of the values.
void DiLoCo::share(std::size_t unit) {
  const bool has_all = parameters_.unit(unit).stage() == ZeroStage::none;
  if (has_all) parameters_.share(unit, [&](std::size_t range) { return master(range); });
  for (std::size_t i = 0; i < parameters_.ranges().size(); ++i) {
    const ShardedParameters::Range& range = parameters_.ranges()[i];
    if (range.unit == unit && master(i)) kernels::convert(master(i), range.value);
  }
  if (!has_all) parameters_.share_values(unit);
  optimizer_.release(unit);
}

}  // namespace stretto
