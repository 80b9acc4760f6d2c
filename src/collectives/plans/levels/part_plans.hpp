#pragma once
#include <numeric>
#include <unordered_map>

#include "stretto/plan.hpp"

namespace stretto::plans {

// The plans of parts that were made before, by request. Pieces of one plan often have the same parts, and so do the plans of
// ranks on other nodes and of other roots. A plan depends only on its request. The request contains the part's rank, but not
// which ranks of the whole are the part's members. So one plan serves all equal requests.
class PartPlans {
 public:
  // The plan of a part; the reference is valid until forget(). Throws what make_plan() throws.
  const Plan& of(const PlanRequest& part);

  void forget() { plans_.clear(); }
  std::size_t size() const { return plans_.size(); }

 private:
  struct Hash {
    std::size_t operator()(const PlanRequest& request) const {
      std::size_t hash = 0;
      const auto mix = [&](std::int64_t value) {
        hash = (hash ^ static_cast<std::size_t>(value)) * 0x9E3779B97F4A7C15U;
        hash ^= hash >> 32;
      };
      mix(static_cast<int>(request.collective) << 8 | static_cast<int>(request.method.algorithm));
      mix(request.rank);
      mix(request.size);
      mix(request.root);
      mix(request.count);
      mix(std::accumulate(request.counts.begin(), request.counts.end(), std::int64_t{0}));
      return hash;
    }
  };
  std::unordered_map<PlanRequest, Plan, Hash> plans_;
};

// A plan of levels. Takes parts from `parts` if they were made before.
Plan two_level(const PlanRequest& request, PartPlans& parts);

}  // namespace stretto::plans

namespace stretto {

// Like make_plan(), for one of many requests: parts that requests have in common are made once. Exported for the library
// stretto_proof.
STRETTO_API Plan make_plan(const PlanRequest& request, plans::PartPlans& parts);

}  // namespace stretto
