#pragma once
#include <vector>

#include "overlap/postponement.hpp"
#include "stretto/communicator.hpp"
#include "stretto/overlap/unit_traffic.hpp"

namespace stretto {

// Measures the first steps at ZeroStage::none, in which the gradients of all units are gathered in backward, and then
// chooses the units whose values are gathered in the next forward instead (best_postponed). That changes no bit of the
// results. Only the thread that computes may use an object.
class PostponementChoice {
 public:
  struct Unit {
    int ranks = 1;            // of its group
    double elements = 0;      // by which the time of the update is divided over the units
    double values_width = 1;  // bytes of a value over those of a gradient
  };
  // Measures so many steps.
  PostponementChoice(Communicator world, std::vector<Unit> units, int steps);

  void begin_step();
  void computed();  // backward has ended
  void update_begins();
  // Collective over the world, so that all ranks choose alike: of computation counts what the slowest rank measured, of
  // communication what the fastest did, which waited for nobody. Returns whether the choice has been made. On a GPU it
  // blocks.
  bool end_step(UnitTraffic& traffic);

 private:
  // Logs what the choice expects, beside none and all.
  static void tell(const StepTimes& times, const std::vector<bool>& postponed);
  StepTimes times_of(const std::vector<std::size_t>& order) const;

  Communicator world_;
  std::vector<Unit> units_;
  int steps_;
  Work begin_, computed_, update_begin_;     // places in computation()
  std::vector<double> computing_, sending_;  // the least of each number over the steps
};

}  // namespace stretto
