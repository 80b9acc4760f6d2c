#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/dtype.hpp"
#include "stretto/export.hpp"
#include "stretto/move.hpp"
#include "stretto/shape.hpp"
#include "stretto/tensor.hpp"

// Programs of one controller (Pathways; Barham et al. 2022). One rank, the client, writes functions over groups of virtual
// devices, and the values that flow between them. Other ranks, the executors, run them. Shapes are known ahead, so that a
// program is compiled and checked before its first run: each executor then has its list of actions, and a run costs one
// message to each executor.
//
//   ProgramRuntime runtime(world, {{"double", [](const FunctionCall& call) { ... }}}, {.clients = 1});
//   if (runtime.is_executor()) return runtime.serve();
//   Program program("example");
//   const Program::Group pair = program.group(2), single = program.group(1);
//   const Program::Value x = program.input(pair, {DType::f32, {8, 4}, ValuePlacement::along(0)});
//   const Program::Value y = program.call("double", pair, {x}, {{DType::f32, {8, 4}, ValuePlacement::along(0)}}).front();
//   program.output(program.move(y, single, ValuePlacement::replicated()));
//   CompiledProgram compiled = runtime.compile(program);
//   const std::vector<Tensor> results = compiled.run(1, {tensor}).wait();
//   runtime.leave();
namespace stretto {

// How a value lies on the devices of its group: a copy on each, or balanced parts of a dimension, the larger ones first.
struct STRETTO_API ValuePlacement {
  int dimension = -1;  // -1: copies

  static ValuePlacement replicated() { return {}; }
  static ValuePlacement along(int dimension) { return {dimension}; }
  bool operator==(const ValuePlacement&) const = default;
};

// The type of a whole value.
struct ValueType {
  DType dtype = DType::f32;
  Shape shape;
  ValuePlacement placement = {};

  bool operator==(const ValueType&) const = default;
};

// A program is data: it communicates nothing, and can be compiled any number of times. Its steps are in the order of the
// calls that add them; that is also the order in which each executor does its own. A loop of fixed length is a loop around
// these calls. Values are handles for whole values. An executor frees its part of a value behind the value's last use. All
// functions throw Error(invalid_argument) for handles that are not of this program, and for shapes that do not fit.
class STRETTO_API Program {
 public:
  struct Group {
    int number = -1;
  };
  struct Value {
    int number = -1;
  };

  explicit Program(std::string name) : name_(std::move(name)) {}

  // Adds a group of virtual devices, which compile() binds to as many executors.
  Group group(int devices);
  // Adds a value that the client gives to each run.
  Value input(Group group, const ValueType& type);
  // Calls the function that executors know by this name, on all devices of the group at once. Inputs must lie on the group.
  std::vector<Value> call(const std::string& function, Group group, const std::vector<Value>& inputs,
                          const std::vector<ValueType>& outputs, std::int64_t argument = 0);
  // Reduces over the devices. The value's dimension 0 has an entry for each device, and is divided; the result lacks it, and
  // is replicated (an all-reduce) or divided along its dimension 0 (a reduce-scatter).
  Value reduce(Value value, ReduceOp op, ValuePlacement placement);
  // Brings a value to a group, this or another one, divided as wanted (stretto/move.hpp). An all-gather is a move within a
  // group.
  Value move(Value value, Group group, ValuePlacement placement);
  // The client gets this value from the last of the runs that a call of run() asks for.
  void output(Value value);
  // The value of the last of these runs stays on its devices, and the client gets a handle (KeptValue), which it may give to
  // runs of any of its programs for a kept_input() of the same type on a group of the same executors.
  void keep(Value value);
  Value kept_input(Group group, const ValueType& type);

  enum class StepKind : std::uint8_t { call, reduce, move };
  struct Step {
    StepKind kind = StepKind::call;
    std::string function;  // of a call
    int group = 0;         // of the results
    std::vector<int> inputs, outputs;
    std::int64_t argument = 0;
    ReduceOp op = ReduceOp::sum;
  };
  struct TypedValue {
    ValueType type;
    int group = 0;
  };
  const std::string& name() const { return name_; }
  const std::vector<int>& groups() const { return groups_; }  // devices
  const std::vector<TypedValue>& values() const { return values_; }
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<int>& inputs() const { return inputs_; }
  const std::vector<int>& outputs() const { return outputs_; }
  const std::vector<int>& kept_inputs() const { return kept_inputs_; }
  const std::vector<int>& kept() const { return kept_; }
  // Values that are there before the first step, and those that stay until a run ends.
  std::vector<int> given() const;
  std::vector<int> lasting() const;

 private:
  Value add(const ValueType& type, int group);
  const TypedValue& value(Value value) const;
  void check(Group group) const;

  std::string name_;
  std::vector<int> groups_;
  std::vector<TypedValue> values_;
  std::vector<Step> steps_;
  std::vector<int> inputs_, outputs_, kept_inputs_, kept_;
};

// One thing that an executor does for a step, as data.
struct ProgramAction {
  enum class Kind : std::uint8_t {
    call,
    reduce,
    start_move,  // returns at once
    finish_move  // blocks until the move of this step has ended
  };
  Kind kind = Kind::call;
  int step = 0;
  std::vector<int> makes = {};  // values that it takes memory for before
  std::vector<int> frees = {};  // values whose memory it gives back behind
};

struct STRETTO_API ProgramPlan {
  std::vector<std::vector<int>> groups;           // the executors of each group's devices
  std::vector<std::vector<ProgramAction>> lists;  // by executor
  struct PlannedMove {
    std::vector<int> ranks;  // the executors that take part, ascending; the plan's ranks are places in this list
    MovePlan plan;
  };
  std::vector<PlannedMove> moves;          // equal ones once
  std::vector<int> move_of_step;           // -1: the step is no move
  std::vector<std::int64_t> peak_bytes{};  // by executor: of values, and of the messages of moves, in a run

  std::string to_string(const Program& program) const;
};

// Compiles a program: a pure function. groups: the executors of each group; `nodes`, if not empty, has the node of each
// executor. Throws Error(invalid_argument) if they do not fit to the program. Cost: O(steps x executors), and plan_move()
// for each move.
STRETTO_API ProgramPlan plan_program(const Program& program, std::vector<std::vector<int>> groups, int executors,
                                     const std::vector<int>& nodes = {});
// Proves a plan by running all executors symbolically, where a function begins when all of its group have come to it: every
// value is there when it is used, nobody waits for ever, moves do what they say (verify(MovePlan)), all memory is given
// back, and the peaks are as stated. Throws Error(invalid_argument) that names executor and action.
STRETTO_API void check(const Program& program, const ProgramPlan& plan);

// One call of a function on one executor. Tensors are this device's parts, in host memory. Collectives of `group` should be
// on Stream::inline_(): only there does another rank's failure end them at once.
struct FunctionCall {
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;  // to be written
  Communicator group;           // the devices of the group, in order; of this program alone
  std::int64_t argument = 0;
  std::int64_t run = 0;  // of the program, from 0 on
  std::string program, client;
};
using FunctionTable = std::map<std::string, std::function<void(const FunctionCall&)>>;

// How a run reaches the executors.
enum class Dispatch : std::uint8_t {
  parallel,    // one message to each executor and run, all its actions at once
  sequential,  // a message to each executor for each step, sent when all executors have begun the step before
  op_by_op     // a message to each executor for each step, sent when all executors have done the step before
};

// A whole value that stays on executors; a handle. When the last copy is dropped, and no run that was given it is under way,
// the executors free their parts, for which each of them gets a message. If the run ends after the handle, the client's next
// compile(), run(), wait() or leave() sends it. When a client leaves, executors free all that it keeps.
class STRETTO_API KeptValue {
 public:
  KeptValue() = default;
  explicit operator bool() const { return state_ != nullptr; }

  struct STRETTO_HIDDEN State;
  explicit KeptValue(std::shared_ptr<const State> state) : state_(std::move(state)) {}  // Internal.
  const std::shared_ptr<const State>& state() const { return state_; }                  // Internal.

 private:
  std::shared_ptr<const State> state_;
};

// Runs that are under way; a handle. Dropping it does not end them. It may outlive the runtime.
class STRETTO_API ProgramRun {
 public:
  ProgramRun() = default;
  // Blocks until the runs are done, and returns the whole outputs of the last one. If a function has thrown, throws
  // Error(peer_gave_up) that names function, program, client, run and rank. If the client has left before all of these runs
  // had begun, throws Error(peer_gave_up), too.
  std::vector<Tensor> wait() const;
  bool done() const;
  // Waits as wait() does, and returns the values that the last run keeps, in the order of Program::keep(). The runs hold
  // them, too.
  std::vector<KeptValue> kept() const;

  struct STRETTO_HIDDEN State;
  explicit ProgramRun(std::shared_ptr<State> state) : state_(std::move(state)) {}  // Internal: not part of the interface.

 private:
  std::shared_ptr<State> state_;
};

// A program that executors know; a handle. They forget it when the last copy is dropped and no run is under way, as they
// free a KeptValue.
class STRETTO_API CompiledProgram {
 public:
  const ProgramPlan& plan() const;
  // Asks for so many runs, each with these inputs: whole tensors in host memory, in the order of Program::input(), and
  // values that executors keep, in the order of Program::kept_input(). Returns at once, but blocks while most_in_flight
  // calls of run() of this program have not ended. Functions must not write to inputs. Throws Error(invalid_argument) if the
  // inputs do not fit, and if the client has left.
  ProgramRun run(int times = 1, const std::vector<Tensor>& inputs = {}, const std::vector<KeptValue>& kept = {}) const;

  struct STRETTO_HIDDEN State;
  explicit CompiledProgram(std::shared_ptr<State> state) : state_(std::move(state)) {}  // Internal.

 private:
  std::shared_ptr<State> state_;
};

// The last `clients` ranks of a communicator are clients, the others executors. Rank 0 also puts the runs of all clients
// into one order, the same on all executors, so that no two programs wait for each other. Clients take turns by their
// weights (stride scheduling; Waldspurger and Weihl 1995). Let N clients of weights w, whose sum is W, have the same
// most_in_flight, 2 or more, and programs on the same executors: of any K runs that begin while all of them have runs that
// wait, a client's number then differs from K w / W by at most 1 + N w / W. With most_in_flight = 1, a client has nothing to
// begin while its run is under way, and others take its turns.
//
// Failures: if a function throws, the runs of its program that are in flight end, on all executors, and their wait() throws.
// Other programs go on, and so does this one with its next run.
//
// Losses: while a runtime lives, the job goes on without ranks that die, but for rank 0, which ends it as everywhere. A
// client takes its programs with it, and whatever executors have of it; others don't notice. An executor takes the programs
// with it that have something to do there: their runs, and all that are asked for later, throw Error(peer_gave_up) that
// names the functions, program, client, run and rank. The client may compile such a program again, which binds it to the
// executors that are left. This holds if rank 0 of the communicator is rank 0 of the job. Processes need
// LaunchOptions::survivors_go_on, or a launcher that leaves the others alone.
//
// Threads: one thread of a rank uses the object and what it returns. A client has one thread of the library that receives
// messages, an executor one (rank 0 two, and another one with STRETTO_PROGRAMS_PORT), and another one that executes moves.
// These threads sleep while nothing comes.
class STRETTO_API ProgramRuntime {
 public:
  struct Options {
    int clients = 1;                // the same on all ranks
    std::string client = "client";  // of a client: its name in errors
    double weight = 1;              // of a client: from 1e-6 to 1e6
    int most_in_flight = 2;  // of a client: runs of a program that have begun and not ended, and calls of run() for it
  };
  // Collective. Throws Error(invalid_argument) on all ranks if the options of one cannot be.
  ProgramRuntime(const Communicator& world, FunctionTable functions, const Options& options);
  // A client that has not left leaves: runs that have not begun are given up. An executor whose serve() has not returned
  // aborts the job, as clients would wait for it for ever.
  ~ProgramRuntime();
  ProgramRuntime(const ProgramRuntime&) = delete;
  ProgramRuntime& operator=(const ProgramRuntime&) = delete;

  bool is_executor() const;
  // Executors: runs programs until all clients have left. The thread sleeps while there is nothing to do.
  void serve();

  // Clients: binds the program's groups to executors, those of a host together and the least used first, plans it, checks it
  // and has it prepared by the executors that do something in it, in their order of runs. Throws Error(invalid_argument) if
  // a group is larger than the number of executors, if an executor lacks a function, if a value that is kept, or a kept
  // input that is an output, lies on a group that does nothing, and for names that are not UTF-8. Throws
  // Error(peer_gave_up), which names the lost executors, if too few are left for a group, or if one of the program's is lost
  // meanwhile: the client may compile the program again.
  //
  // compile() waits for executors that are busy or stopped. If a stop of `cancelled` is requested meanwhile, by any thread,
  // it throws Error(timeout), which names the executors that it waits for and what is known of them, such as for how long
  // they have given no sign of life. The other executors drop the program when the last of those has answered or is lost.
  // The runtime stays usable.
  CompiledProgram compile(const Program& program, Dispatch dispatch = Dispatch::parallel,
                          const std::stop_token& cancelled = {});
  // Clients: waits for all runs, and leaves. Other clients go on.
  void leave();

  struct STRETTO_HIDDEN State;

 private:
  std::unique_ptr<State> state_;
};

// What the scheduler of a ProgramRuntime says of itself at a port (STRETTO_PROGRAMS_PORT), for a process that has the job's
// STRETTO_JOB_SECRET: what runs, what waits, and how busy executors are for whom. Throws Error(unavailable) or
// Error(invalid_argument) with the reason if there is no answer within `seconds`.
STRETTO_API std::string programs_state(const std::string& host, int port, double seconds = 5);

}  // namespace stretto
