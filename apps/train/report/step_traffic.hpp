#pragma once
#include <algorithm>

#include "stretto/ledger.hpp"

namespace apps {

// Gathers still in flight at the end of a step finish during the next one. Their bytes count for the step that sent them,
// their time for the step that hid it.
class StepTraffic {
 public:
  explicit StepTraffic(const stretto::Ledger& ledger) : ledger_(ledger) {}
  void begin() { first_ = ledger_.next_sequence(); }
  stretto::Traffic end() {
    stretto::Traffic late;
    for (const stretto::Record& record : ledger_.records(left_first_)) {
      if (record.sequence < left_end_) late += record;
    }
    const stretto::Traffic own = ledger_.traffic(first_);
    stretto::Traffic result = own;
    result.busy_seconds +=
        std::max(0.0, late.busy_seconds - counted_.busy_seconds);  // the ledger may have dropped some records
    result.exposed_seconds += std::max(0.0, late.exposed_seconds - counted_.exposed_seconds);
    counted_ = own;
    left_first_ = first_;
    left_end_ = ledger_.next_sequence();
    return result;
  }

 private:
  const stretto::Ledger& ledger_;
  std::uint64_t first_ = 0;
  std::uint64_t left_first_ = 0, left_end_ = 0;  // operations of the step before
  stretto::Traffic counted_;                     // the traffic of the step before, when it ended
};

}  // namespace apps
