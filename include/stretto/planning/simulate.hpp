#pragma once
#include <functional>

#include "stretto/plan.hpp"

// Predicts how long a collective takes on a real or imagined machine: all ranks' plans run, without data, on a model of
// the machine's links.
//
// The model follows Hockney 1994, with LogGP's overhead and gap (Alexandrov et al. 1995) and ports of a node as in
// Gropp, Olson & Samfass 2016. Links form levels, from inside to outside. A unit of level 0, such as a node, holds
// `ranks` ranks; a unit of level 1 holds several units of level 0; the unit of the last level holds all ranks. A message
// uses the innermost level whose unit contains both ranks.
// - A message starts when sender and receiver have posted it (rendezvous). It occupies its ports for overhead + bytes /
//   bandwidth, and arrives alpha later. It is then complete for both ranks.
// - Each rank has one port in each direction, and separate ports for each level with own_ports. Separate ports model,
//   for example, memory and a network card that work at the same time. A message that leaves or enters a unit of an
//   inner level also occupies one of the unit's `ports`. A port serves messages in the order in which they become ready;
//   messages that become ready at the same time are served in the order of their steps.
// - Local work takes bytes / local_gbs of the rank's time. A rank does one piece of local work at a time, over all its
//   lanes. The copies and reductions of a round are done before the round's messages are posted; the reduction of a
//   recv_reduce is done when its message has arrived. If source and destination are the same memory, a copy is free. A
//   reduction of k vectors counts as the work of k - 1 vectors. Quantization and dequantization cost as much as a copy
//   of the same number of unquantized elements, summed over all vectors that are added. They run while the round's
//   messages are in flight. A message of records has the bytes of its records.
// - A signal takes the overhead of the innermost level from the rank's time, and reaches all ranks after that level's
//   alpha. A wait that finds its signal takes the overhead, too. Reads and writes of other ranks' memory are local work,
//   and use no ports. In Algorithm::pull, a read takes bytes / bandwidth in addition to the reduction, because it may go
//   through the operating system.
namespace stretto {

struct LinkLevel {
  std::string name;
  // The number of ranks per unit of this level: a multiple of `ranks` of the next inner level. 0 means all ranks, and is
  // allowed for the last level only.
  int ranks = 0;
  double alpha_us = 0;
  double overhead_us = 0;
  double bandwidth_gbs = 0;  // of a port, in 1e9 bytes per second
  int ports = 1;             // of a unit, in each direction, for messages that leave or enter the unit
  bool own_ports = false;    // ranks have separate ports for this level; its messages do not wait for those of other levels
};

// In JSON: {"levels": [{"name": "node", "ranks": 8, "alpha_us": 1, "overhead_us": 0.2, "bandwidth_gbs": 200, "ports":
// 1}, {"name": "network", "alpha_us": 5, "overhead_us": 0.5, "bandwidth_gbs": 50}], "local_gbs": 400}. Defaults:
// "ports" 1, "own_ports" false. The last level has no "ports", and needs no "ranks".
struct LinkModel {
  std::vector<LinkLevel> levels;
  double local_gbs = 0;
};
STRETTO_API LinkModel link_model_from_text(const std::string& json);  // both functions throw Error naming the fault
STRETTO_API LinkModel link_model_from_file(const std::string& path);

struct TimedStep {
  int rank, lane, round;
  StepKind kind;
  int peer;            // -1 for local work and signals; in a read_reduce, the rank that gets the result, or `everybody`
  std::int64_t bytes;  // sent, received, read or processed; in a read_reduce, the bytes of one rank's vector
  double begin, end;   // seconds. A message begins when it gets its ports
};

struct Simulation {
  double seconds = 0;
  std::vector<double> finish;            // the seconds at which each rank finishes, by rank
  std::vector<std::int64_t> bytes_sent;  // by level, summed over all ranks; counted as in Plan::elements_sent()
  int ranks_simulated = 0;               // all ranks, or the ranks of one unit if all units do the same
  std::vector<TimedStep> timeline;       // of all ranks, if SimulationOptions::timeline
};

struct SimulationOptions {
  bool in_place = false;  // input and output share memory: a copy whose source is its destination is free
  bool timeline = false;  // record a timeline. All ranks are then simulated
  bool symmetry = true;   // false: always simulate all ranks
};

// Simulates the plans plan_of(rank) of all ranks. An element has element_bytes bytes.
//
// If all units of the second outermost level do the same, only the ranks of one unit are simulated; with a single level,
// a unit is a rank. Two units do the same if their steps are equal, and their peers either are at the same distances in
// rank numbers (modulo size), or differ from the rank's number in the same bits. simulate() compares the plans of
// several units to establish this. The shortcut makes plans of O(size) rounds cheap for thousands of ranks. Otherwise
// simulate() holds the steps of all ranks, 16 bytes each, and throws Error(invalid_argument) if there are more than
// most_steps_simulated. Cost: O(log m) per message, with m messages in flight.
constexpr std::int64_t most_steps_simulated = std::int64_t{1} << 25;
STRETTO_API Simulation simulate(int size, const std::function<Plan(int rank)>& plan_of, std::int64_t element_bytes,
                                const LinkModel& links, const SimulationOptions& options = {});
// Like the overload above, for the plans of make_plan(), with request.rank set to each rank in turn. Does not accept
// all_to_all with uneven counts, because its counts differ between ranks.
STRETTO_API Simulation simulate(const PlanRequest& request, std::int64_t element_bytes, const LinkModel& links,
                                const SimulationOptions& options = {});

}  // namespace stretto
