#include <numeric>
#include <optional>
#include <set>

#include "collectives/job/throw_together.hpp"
#include "core/fail.hpp"
#include "core/setting_values.hpp"
#include "program/client.hpp"
#include "program/control/control_links.hpp"
#include "program/control/scheduler.hpp"
#include "program/executor.hpp"
#include "server/state_door.hpp"
#include "stretto/program.hpp"
#include "stretto/require_same.hpp"

namespace stretto {

struct ProgramRuntime::State {
  State(const Communicator& ranks, FunctionTable functions, Options given)
      : world(ranks), options(std::move(given)), executors(executors_of(world, options)), links(world, executors) {
    std::vector<int> numbers(static_cast<std::size_t>(executors));
    std::iota(numbers.begin(), numbers.end(), 0);
    const Communicator group = world.subgroup(numbers, "executors");
    const std::vector<int> nodes(world.nodes().begin(), world.nodes().begin() + executors);
    std::set<int> clients;
    for (int rank = executors; rank < world.size(); ++rank) clients.insert(rank);
    if (group) executor.emplace(links, group, std::move(functions), clients);
    if (world.rank() == 0) {
      scheduler.emplace(links, executors, nodes);
    }
    throw_together(world, "open the door of programs", [&] {
      if (world.rank() == 0) open_door();
    });
    if (!group) client = std::make_shared<Client>(links, executors, nodes);
    links.start([this](const ReceivedMessage& message) { handle(message); },
                [this](const std::exception_ptr& why) { lose(why); });
  }
  ~State() { links.join(); }  // before what its threads use

  void open_door() {
    const auto port = static_cast<int>(number_setting("STRETTO_PROGRAMS_PORT"));
    if (port == 0) return;
    door.emplace(
        place_of_door(port), introduce(0, world.size(), "programs"), [this] { return scheduler->state(); }, programs_door);
  }
  static int executors_of(const Communicator& world, const Options& options) {
    require_same(world, {{"clients of programs", std::to_string(options.clients)}});
    require(0 < options.clients && options.clients < world.size(), "{} clients of {} ranks leave no executor, or are none.",
            options.clients, world.size());
    return world.size() - options.clients;
  }
  void handle(const ReceivedMessage& message) {
    if (client) return client->handle(message);
    switch (static_cast<ControlKind>(message.head.kind)) {
      case ControlKind::compile:
      case ControlKind::give_up:
      case ControlKind::submit:
      case ControlKind::abandon:
      case ControlKind::place:
      case ControlKind::ready:
      case ControlKind::did_step:
      case ControlKind::did_run:
      case ControlKind::run_failed: return scheduler->handle(message);
      case ControlKind::lost:
        if (scheduler) scheduler->handle(message);  // which tells the others
        return;
      case ControlKind::drop:
        if (message.from >= executors) return scheduler->handle(message);
        break;
      case ControlKind::goodbye:
        if (world.rank() == 0 && message.from < executors) return;  // its answer
        break;
      default: break;
    }
    executor->handle(message);
  }
  void lose(const std::exception_ptr& why) {
    if (client) client->lose(why);
    if (executor) executor->lose(why);
  }

  Communicator world;
  Options options;
  int executors;
  ControlLinks links;
  std::optional<Executor> executor;
  std::optional<Scheduler> scheduler;
  std::optional<StateDoor> door;
  std::shared_ptr<Client> client;
  bool left = false;
};

namespace {

// Options that one rank alone refused would leave the others waiting for it.
void agree_on(const Communicator& world, const ProgramRuntime::Options& options) {
  constexpr double least_weight = 1e-6, most_weight = 1e6;
  const bool fits = least_weight <= options.weight && options.weight <= most_weight && options.most_in_flight > 0;
  std::int32_t refuses = fits ? world.size() : world.rank();
  world.all_reduce(&refuses, &refuses, 1, DType::i32, ReduceOp::min, Stream::inline_()).wait();
  require(fits,
          "A client with a weight of {} and {} runs in flight cannot be; give a weight from {} to {}, and runs from 1 on.",
          options.weight, options.most_in_flight, least_weight, most_weight);
  require(refuses == world.size(), "Rank {} has options of a client that cannot be, which its own error names.", refuses);
}

}  // namespace

struct CompiledProgram::State {
  std::shared_ptr<Client> client;
  std::shared_ptr<const Client::Compiled> compiled;
};

ProgramRuntime::ProgramRuntime(const Communicator& world, FunctionTable functions, const Options& options) {
  agree_on(world, options);
  state_ = std::make_unique<State>(world, std::move(functions), options);
}

ProgramRuntime::~ProgramRuntime() {
  if (state_->left) return;
  try {
    if (state_->client) {
      state_->client->leave(true);
    } else {
      // Its threads would listen for ever, and clients would wait for it. After a loss they end by themselves.
      state_->world.job().check_ranks();
      state_->world.job().abort("It left its programs.");
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the job is lost, which others report
  }
}

bool ProgramRuntime::is_executor() const { return state_->executor.has_value(); }

void ProgramRuntime::serve() {
  require(is_executor(), "Rank {} is a client of programs and serves none.", state_->world.rank());
  state_->executor->serve();
  state_->links.join();
  state_->left = true;
}

CompiledProgram ProgramRuntime::compile(const Program& program, Dispatch dispatch, const std::stop_token& cancelled) {
  require(state_->client && !state_->left, "Rank {} cannot compile program '{}': it {}.", state_->world.rank(),
          program.name(), state_->client ? "has left" : "is an executor");
  auto compiled = std::make_shared<CompiledProgram::State>();
  compiled->client = state_->client;
  compiled->compiled = state_->client->compile(
      {program, {}, state_->options.client, state_->options.weight, state_->options.most_in_flight, dispatch}, cancelled);
  return CompiledProgram(std::move(compiled));
}

void ProgramRuntime::leave() {
  require(state_->client && !state_->left, "Rank {} cannot leave its programs: it {}.", state_->world.rank(),
          state_->client ? "has left" : "is an executor");
  state_->client->leave(false);
  state_->links.join();
  state_->left = true;
}

std::string programs_state(const std::string& host, int port, double seconds) {
  return state_behind(place_of_door(port, host, seconds), programs_door);
}

const ProgramPlan& CompiledProgram::plan() const { return state_->compiled->plan; }

ProgramRun CompiledProgram::run(int times, const std::vector<Tensor>& inputs, const std::vector<KeptValue>& kept) const {
  return ProgramRun(state_->client->run(state_->compiled, times, inputs, kept));
}

std::vector<Tensor> ProgramRun::wait() const {
  require(state_ != nullptr, "There is no run to wait for.");
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->is_done(); });
  lock.unlock();  // what is done changes no more
  if (const auto client = state_->client.lock()) client->let_go();
  if (state_->loss) std::rethrow_exception(state_->loss);
  if (!state_->failure.empty()) throw Error(ErrorCode::peer_gave_up, state_->failure);
  return state_->outputs;
}

std::vector<KeptValue> ProgramRun::kept() const {
  wait();
  return state_->kept;
}

bool ProgramRun::done() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->is_done();
}

}  // namespace stretto
