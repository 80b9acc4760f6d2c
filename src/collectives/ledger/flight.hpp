#pragma once
#include <cstdint>
#include <string>

#include "stretto/ledger.hpp"

// The flight recorder: what a rank did last, for whoever looks for the reason of a hang. `stretto-info flight` reads the
// files of all ranks.
namespace stretto {

// A rank's answer to the question of what it is doing, as its ledger shows it.
struct LedgerAccount {
  std::string text;    // the end of a sentence about it
  bool waits = false;  // its program waits for an operation
};
LedgerAccount account_of(const Ledger& ledger);

struct FlightLabel {
  std::uint64_t job = 0;  // the same on all ranks of a job, and different between jobs
  int rank = 0, size = 1;
  std::string reason;  // why the file is written
};

// Writes the last 1,000 operations to DIRECTORY/flight_JOB_RANK.json, which appears when it is complete and replaces an
// earlier one. Makes the directory. Returns the path. Throws Error(io).
std::string write_flight(const Ledger& ledger, const FlightLabel& label, const std::string& directory);

}  // namespace stretto
