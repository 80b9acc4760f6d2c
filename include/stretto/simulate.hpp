#pragma once
#include <functional>

#include "stretto/plan.hpp"

// Predicts how long a collective takes on a machine that need not be there: all ranks' plans run on a model of its links,
// without data.
//
// The model (Hockney 1994; LogGP's overhead and gap, Alexandrov et al. 1995; ports of a node as in Gropp, Olson & Samfass
// 2016). Links form levels, from inside to outside: a unit of level 0 holds `ranks` ranks, say a node; a unit of level 1
// holds several of those; the last level holds all. A message takes the innermost level whose unit contains both ranks.
// - A message starts when both sides have posted it (rendezvous), occupies its ports for overhead + bytes / bandwidth and
//   arrives alpha later, when it ends for both sides.
// - Each rank has one port in each direction, and others for the levels that have ports of their own: as memory and a
//   network card, which work at the same time. A message that leaves a unit of an inner level occupies one of that unit's
//   `ports` too, and so it does where it enters one. A port serves its messages in the order in which they became ready;
//   of those that became ready together, in the order of their steps.
// - Local work takes bytes / local_gbs of the rank's time, one after the other, whatever the lane: a round's copies and
//   reductions before its messages are posted, a recv_reduce when it has arrived. A copy onto itself is free; reducing k
//   vectors is the work of k - 1. What is packed or unpacked is the work of copying as many plain elements, those of all
//   vectors that are added, while the round's messages are under way; a message of records has their bytes.
// - A signal takes the rank's time for the innermost overhead, and is known everywhere alpha later; a wait then takes the
//   overhead. What a rank reads from others, or writes to them, is local work like its own; by pull the bytes read take the
//   reader bytes / bandwidth, since they may go through the kernel (and are then reduced). Ports play no part in it.
namespace stretto {

struct LinkLevel {
  std::string name;
  int ranks = 0;  // in a unit of this level, a multiple of the level's within; 0 (the last level): all
  double alpha_us = 0;
  double overhead_us = 0;
  double bandwidth_gbs = 0;  // 1e9 bytes a second, of a port
  int ports = 1;             // through which a unit's messages leave, and as many through which they enter
  bool own_ports = false;    // a rank's messages of this level do not wait for those of others
};

// As JSON: {"levels": [{"name": "node", "ranks": 8, "alpha_us": 1, "overhead_us": 0.2, "bandwidth_gbs": 200, "ports": 1},
// {"name": "network", "alpha_us": 5, "overhead_us": 0.5, "bandwidth_gbs": 50}], "local_gbs": 400}. "ports" is 1 where it is
// left out, "own_ports" false; the last level may leave "ranks" out and has no "ports".
struct LinkModel {
  std::vector<LinkLevel> levels;
  double local_gbs = 0;
};
STRETTO_API LinkModel link_model_from_text(const std::string& json);  // these throw Error saying what is wrong
STRETTO_API LinkModel link_model_from_file(const std::string& path);

struct TimedStep {
  int rank, lane, round;
  StepKind kind;
  int peer;            // -1 for local work and signals; of a read_reduce who gets the result, which may be everybody
  std::int64_t bytes;  // sent, received, read or worked on; of a read_reduce, in one rank's memory
  double begin, end;   // seconds; a message begins when it gets its ports
};

struct Simulation {
  double seconds = 0;
  std::vector<double> finish;            // seconds, by rank
  std::vector<std::int64_t> bytes_sent;  // by level, of all ranks; as Plan::elements_sent() counts
  int ranks_simulated = 0;               // all, or one unit where all units do the same
  std::vector<TimedStep> timeline;       // of all ranks, where it is wanted
};

struct SimulationOptions {
  bool in_place = false;  // saves copies onto themselves
  bool timeline = false;  // for drawing; simulates all ranks
  bool symmetry = true;   // false: simulate all ranks in any case
};

// plan_of(rank) gives a rank's plan, an element of which has so many bytes. Where all units of the outermost level but one
// (all ranks, on a single level) do the same, to peers that are as far around the ranks or differ in the same bits of their
// numbers, only the first one's ranks are simulated: this is what makes plans of O(size) rounds at thousands of ranks cheap.
// It is looked up in the plans of several units, not assumed. Otherwise all ranks' steps are held, 16 bytes each, and
// Error(invalid_argument) is thrown when there are more than most_steps_simulated. A message costs O(log) of those under
// way.
constexpr std::int64_t most_steps_simulated = std::int64_t{1} << 25;
STRETTO_API Simulation simulate(int size, const std::function<Plan(int rank)>& plan_of, std::int64_t element_bytes,
                                const LinkModel& links, const SimulationOptions& options = {});
// The same of make_plan() with the request's rank replaced by each in turn; not for all_to_all with counts, which differ.
STRETTO_API Simulation simulate(const PlanRequest& request, std::int64_t element_bytes, const LinkModel& links,
                                const SimulationOptions& options = {});

}  // namespace stretto
