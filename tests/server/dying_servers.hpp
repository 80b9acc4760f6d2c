#pragma once
#include <memory>
#include <string>
#include <vector>

#include "stretto/server.hpp"

// Servers that are lost in a test, as threads of its process.
namespace stretto {

inline constexpr std::int64_t counters = 40;
inline constexpr int worker_count = 3;
inline const Consistency consistencies[] = {Consistency::sequential(), Consistency::bounded(2), Consistency::eventual()};

struct Killed {};

// Ends a server in its n-th update, as a thread can be ended: the others learn that its rank gives up.
struct Death {
  int rank = 0, update = 0;
};

inline ServerFunction deadly(ServerFunction function, const Communicator& world, const std::vector<Death>& deaths) {
  const auto updates = std::make_shared<int>(0);
  function.update = [inner = function.update, rank = world.rank(), deaths, updates](const ServerUpdate& update) {
    inner(update);
    ++*updates;
    for (const Death& death : deaths) {
      if (death.rank == rank && death.update == *updates) throw Killed();
    }
  };
  return function;
}

inline void serve_until_death(ServerSet& set, const ServerSet::Answer& answer = {}) {
  try {
    set.serve(answer);
  } catch (const Killed&) {
    set.ranks().job().abort("it is killed.");
  }
}

}  // namespace stretto
