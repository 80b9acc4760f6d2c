#pragma once
#include <vector>

#include "stretto/plan.hpp"

namespace stretto {

struct AlgorithmCase {
  Collective collective;
  Algorithm algorithm;
};

inline std::vector<AlgorithmCase> every_algorithm() {
  std::vector<AlgorithmCase> cases;
  for (int i = 0; i < static_cast<int>(Collective::send); ++i) {
    const auto collective = static_cast<Collective>(i);
    for (const Algorithm algorithm : algorithms_for(collective)) cases.push_back({collective, algorithm});
  }
  return cases;
}

}  // namespace stretto
