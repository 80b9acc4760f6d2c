#pragma once
#include <functional>

#include "stretto/plan.hpp"

// Predicts how long a collective takes on any machine, real or not: all ranks' plans run on a model of its links,
// without data.
//
// The model (Hockney 1994; LogGP's overhead and gap, Alexandrov et al. 1995; ports of a node as in Gropp, Olson &
// Samfass 2016). Links form levels, from inside to outside: a unit of level 0, such as a node, holds `ranks` ranks; a
// unit of level 1 holds several of those; the last level holds all. A message uses the innermost level whose unit
// contains both ranks.
// - A message starts when both sides have posted it (rendezvous). It occupies its ports for overhead + bytes /
//   bandwidth and arrives alpha later; then it is over for both sides.
// - Each rank has one port in each direction, and a separate one for each level with own_ports. This models, for
//   example, memory and a network card, which work at the same time. A message that leaves a unit of an inner level
//   also occupies one of that unit's `ports`, and so does a message that enters one. A port serves messages in the
//   order in which they became ready, and messages that became ready together in the order of their steps.
// - Local work takes bytes / local_gbs of the rank's time. A rank does one piece of local work at a time, for all
//   lanes. The copies and reductions of a round are done before its messages are posted, a recv_reduce when its message
//   has arrived. A copy onto itself is free; reducing k vectors is the work of k - 1. Quantizing and dequantizing cost
//   as much as copying the same number of unquantized elements (of all vectors that are added), and run while the
//   round's messages are in flight. A message of records has the bytes of its records.
// - A signal takes the innermost overhead of the rank's time, and all ranks know it alpha later; a wait then takes the
//   overhead. Reading from and writing to other ranks' memory is local work. By pull, the bytes read take the reader
//   bytes / bandwidth in addition to their reduction, since they may go through the kernel. Such accesses use no ports.
namespace stretto {

struct LinkLevel {
  std::string name;
  int ranks = 0;  // per unit of this level; a multiple of the next inner level's. 0, on the last level only: all
  double alpha_us = 0;
  double overhead_us = 0;
  double bandwidth_gbs = 0;  // of a port, in 1e9 bytes per second
  int ports = 1;             // of a unit, in each direction: messages that leave or enter the unit go through them
  bool own_ports = false;    // ranks have separate ports for this level, so its messages do not wait for other levels'
};

// In JSON: {"levels": [{"name": "node", "ranks": 8, "alpha_us": 1, "overhead_us": 0.2, "bandwidth_gbs": 200, "ports":
// 1}, {"name": "network", "alpha_us": 5, "overhead_us": 0.5, "bandwidth_gbs": 50}], "local_gbs": 400}. Defaults:
// "ports" 1, "own_ports" false. The last level has no "ports", and needs no "ranks".
struct LinkModel {
  std::vector<LinkLevel> levels;
  double local_gbs = 0;
};
STRETTO_API LinkModel link_model_from_text(const std::string& json);  // both throw Error saying what is wrong
STRETTO_API LinkModel link_model_from_file(const std::string& path);

struct TimedStep {
  int rank, lane, round;
  StepKind kind;
  int peer;            // -1 for local work and signals; for a read_reduce, the rank that gets the result, or `everybody`
  std::int64_t bytes;  // sent, received, read or worked on; for a read_reduce, the bytes in one rank's memory
  double begin, end;   // seconds; a message begins when it gets its ports
};

struct Simulation {
  double seconds = 0;
  std::vector<double> finish;            // seconds, by rank
  std::vector<std::int64_t> bytes_sent;  // by level, over all ranks; counted as by Plan::elements_sent()
  int ranks_simulated = 0;               // all ranks, or those of one unit if all units do the same
  std::vector<TimedStep> timeline;       // of all ranks, if asked for
};

struct SimulationOptions {
  bool in_place = false;  // copies onto themselves are free
  bool timeline = false;  // record a timeline; all ranks are then simulated
  bool symmetry = true;   // false: always simulate all ranks
};

// Simulates the plans plan_of(rank) of all ranks; an element has element_bytes bytes.
//
// Only the ranks of one unit are simulated if all units of the second outermost level do the same (on a single level,
// if all ranks do). Units do the same if their steps are equal and their peers are at the same distances around the
// ranks, or differ from the rank in the same bits. This makes plans of O(size) rounds cheap at thousands of ranks. It
// is checked on the plans of several units, not assumed. Otherwise the steps of all ranks are held, 16 bytes each, and
// Error(invalid_argument) is thrown if they are more than most_steps_simulated. Cost: O(log m) per message, with m
// messages in flight.
constexpr std::int64_t most_steps_simulated = std::int64_t{1} << 25;
STRETTO_API Simulation simulate(int size, const std::function<Plan(int rank)>& plan_of, std::int64_t element_bytes,
                                const LinkModel& links, const SimulationOptions& options = {});
// Like the above, for the plans of make_plan(), with request.rank set to each rank in turn. Not for all_to_all with
// uneven counts, since these differ between ranks.
STRETTO_API Simulation simulate(const PlanRequest& request, std::int64_t element_bytes, const LinkModel& links,
                                const SimulationOptions& options = {});

}  // namespace stretto
