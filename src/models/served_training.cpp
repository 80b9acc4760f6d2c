#include "stretto/models/served_training.hpp"

#include <algorithm>
#include <utility>

#include "core/fail.hpp"
#include "layers/sharded/unit_cut.hpp"
#include "stretto/kernels.hpp"
#include "stretto/models/decoder.hpp"

namespace stretto {
namespace {

// The parameters of a unit, one behind the other, as they lie in its table.
class ServedParameters {
 public:
  ServedParameters(std::shared_ptr<const Parameters> records, std::vector<std::size_t> members)
      : records_(std::move(records)), members_(std::move(members)) {}

  std::string name() const {
    const std::string& first = records_->all()[members_.front()]->name;
    return members_.size() == 1 ? first : first + " to " + records_->all()[members_.back()]->name;
  }

  // Calls f(parameter, the first of its elements, where they begin behind `first`, how many) for those that lie in a range.
  template <class F>
  void for_each_in(std::int64_t first, std::int64_t count, F f) const {
    std::int64_t begin = 0;
    for (const std::size_t member : members_) {
      const Parameter& parameter = *records_->all()[member];
      const std::int64_t end = begin + parameter.elements();
      const std::int64_t from = std::max(first, begin), to = std::min(first + count, end);
      if (from < to) f(parameter, from - begin, from - first, to - from);
      begin = end;
    }
  }

 private:
  std::shared_ptr<const Parameters> records_;
  std::vector<std::size_t> members_;
};

// Updates of one piece of the table by one optimizer.
struct Piece {
  const Parameter& parameter;
  Tensor gradient, value;
  std::vector<Tensor> state;
  double lr = 0, gradient_scale = 1;
  std::int64_t number = 1;  // of the update, from 1 on
};

void update(const AdamW::Options& options, const Piece& piece) {
  kernels::adamw({.lr = piece.lr,
                  .beta1 = options.beta1,
                  .beta2 = options.beta2,
                  .epsilon = options.epsilon,
                  .weight_decay = piece.parameter.decays ? options.weight_decay : 0,
                  .step = piece.number,
                  .gradient_scale = piece.gradient_scale},
                 piece.gradient, piece.value, piece.state[0], piece.state[1], piece.value);
}

void update(const SGD::Options& options, const Piece& piece) {
  kernels::sgd({.lr = piece.lr,
                .momentum = options.momentum,
                .weight_decay = piece.parameter.decays ? options.weight_decay : 0,
                .gradient_scale = piece.gradient_scale},
               piece.gradient, piece.value, piece.state.empty() ? Tensor() : piece.state[0], piece.value);
}

template <class Options>
void update(const Options& /*options*/, const Piece& /*piece*/) {
  fail(ErrorCode::internal, "Servers update by no such optimizer.");  // TrainingOptions::check() has refused it
}

// With `eventual` an update has the gradient of one worker, which is then the mean over its own sequences.
ServerFunction function_of(const ServedParameters& parameters, const TrainingOptions& options,
                           const std::function<double(std::int64_t)>& lr_of) {
  const bool is_eventual = options.servers.consistency.kind == Consistency::Kind::eventual;
  const int updates_of_step = is_eventual ? options.mesh[Axis::data] : 1;
  const auto slots = static_cast<int>(kind_of(options.optimizer).slots.size());
  return {[=, optimizer = options.optimizer](const ServerUpdate& its) {
            const double lr = lr_of(its.updates / updates_of_step);
            parameters.for_each_in(its.first, its.values.size(),
                                   [&](const Parameter& parameter, std::int64_t, std::int64_t begin, std::int64_t count) {
                                     Piece piece{.parameter = parameter,
                                                 .gradient = its.pushed.view(begin, {count}),
                                                 .value = its.values.view(begin, {count}),
                                                 .state = {},
                                                 .lr = lr,
                                                 .gradient_scale = static_cast<double>(updates_of_step),
                                                 .number = its.updates + 1};
                                     for (const Tensor& state : its.state) piece.state.push_back(state.view(begin, {count}));
                                     std::visit([&](const auto& kind) { update(kind, piece); }, optimizer);
                                   });
          },
          slots};
}

}  // namespace

std::vector<ServedTable> served_tables(const TrainingOptions& options, const std::function<double(std::int64_t)>& lr_of) {
  const Schedule schedule = options.check();
  const auto records = std::make_shared<Parameters>();
  const Decoder decoder(*records, options.model, options.tensor_parallel(), options.recompute, options.cut(schedule, 0),
                        std::make_shared<LocalAttention>(), options.adapters);
  std::vector<ServedTable> tables;
  for (const UnitMembers& unit : cut_units(*records, options.mesh, options.sharding)) {
    const ServedParameters parameters(records, unit.parameters);
    ServedTable& table = tables.emplace_back();
    table.name = parameters.name();
    table.elements = unit.elements;
    table.dtype = options.sharding.dtype;
    table.initial = [parameters, seed = options.seed](const Tensor& values, std::int64_t first) {
      parameters.for_each_in(first, values.size(),
                             [&](const Parameter& parameter, std::int64_t from, std::int64_t begin, std::int64_t count) {
                               set_initial_values(parameter, seed, from, values.view(begin, {count}));
                             });
    };
    table.update = function_of(parameters, options, lr_of);
  }
  return tables;
}

ServedRanks split_into_servers(const Communicator& world, const TrainingOptions& options,
                               const std::function<double(std::int64_t)>& lr_of) {
  const ServerOptions& servers = options.servers;
  require(options.mesh.ranks() + servers.count == world.size(), "{} workers and {} servers are not {} ranks.",
          options.mesh.ranks(), servers.count, world.size());
  ServedRanks ranks;
  ranks.servers = std::make_unique<ServerSet>(
      world, served_tables(options, lr_of),
      ServerSet::Options{
          .servers = servers.count, .consistency = servers.consistency, .part_elements = servers.part_elements});
  ranks.workers = world.split(ranks.servers->is_server() ? -1 : 0, world.rank(), "workers");
  return ranks;
}

}  // namespace stretto
