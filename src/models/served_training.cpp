#include "stretto/models/served_training.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/job/throw_together.hpp"
#include "core/fail.hpp"
#include "layers/served/served_shards.hpp"
#include "layers/served/table_parameters.hpp"
#include "layers/sharded/unit_cut.hpp"
#include "stretto/kernels.hpp"
#include "stretto/launch.hpp"
#include "stretto/models/decoder.hpp"
#include "transport/bootstrap/socket.hpp"

namespace stretto {
namespace {

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
int updates_of_step(const TrainingOptions& options) {
  return options.servers.consistency.kind == Consistency::Kind::eventual ? options.mesh[Axis::data] : 1;
}

// earlier: updates before the first push, of a checkpoint.
ServerFunction function_of(const TableParameters& parameters, const TrainingOptions& options,
                           const std::function<double(std::int64_t)>& lr_of,
                           const std::shared_ptr<const std::int64_t>& earlier) {
  const auto slots = static_cast<int>(kind_of(options.optimizer).slots.size());
  return {[=, optimizer = options.optimizer, of_step = updates_of_step(options)](const ServerUpdate& its) {
            const std::int64_t updates = *earlier + its.updates;
            const double lr = lr_of(updates / of_step);
            parameters.for_each_in(its.first, its.values.size(),
                                   [&](const Parameter& parameter, std::int64_t, std::int64_t begin, std::int64_t count) {
                                     Piece piece{.parameter = parameter,
                                                 .gradient = its.pushed.view(begin, {count}),
                                                 .value = its.values.view(begin, {count}),
                                                 .state = {},
                                                 .lr = lr,
                                                 .gradient_scale = static_cast<double>(of_step),
                                                 .number = updates + 1};
                                     for (const Tensor& state : its.state) piece.state.push_back(state.view(begin, {count}));
                                     std::visit([&](const auto& kind) { update(kind, piece); }, optimizer);
                                   });
          },
          slots};
}

struct ServedModel {
  std::vector<TableParameters> parameters;  // by table
  std::vector<ServedTable> tables;
};

ServedModel served_model(const TrainingOptions& options, const std::function<double(std::int64_t)>& lr_of,
                         const std::shared_ptr<const std::int64_t>& earlier) {
  const Schedule schedule = options.check();
  const auto records = std::make_shared<Parameters>();
  const Decoder decoder(*records, options.model, options.tensor_parallel(), options.recompute, options.cut(schedule, 0),
                        std::make_shared<LocalAttention>(), options.adapters);
  ServedModel model;
  for (const UnitMembers& unit : cut_units(*records, options.mesh, options.sharding)) {
    const TableParameters& parameters = model.parameters.emplace_back(records, unit.parameters);
    ServedTable& table = model.tables.emplace_back();
    table.name = parameters.name();
    table.elements = unit.elements;
    table.dtype = options.sharding.dtype;
    table.initial = [parameters, seed = options.seed](const Tensor& values, std::int64_t first) {
      parameters.for_each_in(first, values.size(),
                             [&](const Parameter& parameter, std::int64_t from, std::int64_t begin, std::int64_t count) {
                               set_initial_values(parameter, seed, from, values.view(begin, {count}));
                             });
    };
    table.update = function_of(parameters, options, lr_of, earlier);
  }
  return model;
}

// A job of their own: its communicators outlive a server, with which those of `world` end. Empty on servers.
Communicator job_of_workers(const Communicator& world, int workers) {
  if (workers == 1) return world.rank() == 0 ? connect(0, 1, {}, "workers") : Communicator();
  struct Meeting {  // broadcast from rank 0
    std::array<char, 256> host, secret;
    std::int64_t port;
  } meeting{};
  MeetingPoint point;
  Socket listener;  // of rank 0, until connect() owns it
  throw_together(world, "let the workers meet", [&] {
    if (world.rank() != 0) return;
    const bool is_one_host = std::ranges::max(world.nodes()) == 0;
    if (!is_one_host) gethostname(meeting.host.data(), meeting.host.size() - 1);
    point = open_meeting(is_one_host ? "127.0.0.1" : meeting.host.data());
    listener = Socket(point.listener);
    point.host.copy(meeting.host.data(), meeting.host.size() - 1);
    point.secret.copy(meeting.secret.data(), meeting.secret.size() - 1);
    meeting.port = point.port;
  });
  world.broadcast(&meeting, &meeting, sizeof meeting, DType::u8, 0, Stream::inline_(), {.tag = "workers"}).wait();
  if (world.rank() >= workers) return {};
  if (world.rank() > 0) {
    point = {.host = meeting.host.data(), .port = static_cast<int>(meeting.port), .secret = meeting.secret.data()};
  }
  point.listener = listener.release();
  return connect(world.rank(), workers, point, "workers");
}

}  // namespace

ServedRanks split_into_servers(const Communicator& world, const TrainingOptions& options,
                               const std::function<double(std::int64_t)>& lr_of) {
  const ServerOptions& servers = options.servers;
  require(options.mesh.ranks() + servers.count == world.size(), "{} workers and {} servers are not {} ranks.",
          options.mesh.ranks(), servers.count, world.size());
  const auto earlier = std::make_shared<std::int64_t>(0);
  ServedModel model = served_model(options, lr_of, earlier);
  ServedRanks ranks;
  ranks.servers = std::make_unique<ServerSet>(world, std::move(model.tables),
                                              ServerSet::Options{.servers = servers.count,
                                                                 .consistency = servers.consistency,
                                                                 .part_elements = servers.part_elements,
                                                                 .copies = servers.copies});
  if (servers.copies > 0) {
    ranks.workers = job_of_workers(world, options.mesh.ranks());
    if (!ranks.servers->is_server()) ranks.servers->attend();  // workers wait for one another, too
  } else {
    ranks.workers = world.split(ranks.servers->is_server() ? -1 : 0, world.rank(), "workers");
  }
  const auto shards = std::make_shared<const ServedShards>(
      world.rank(), std::move(model.parameters), kind_of(options.optimizer),
      [earlier, of_step = updates_of_step(options)](std::int64_t steps) { *earlier = steps * of_step; });
  ranks.answer = [shards](const ServerSet::Question& question) { return shards->answer(question); };
  return ranks;
}

void ServedRanks::serve() const { servers->serve(answer); }

}  // namespace stretto
