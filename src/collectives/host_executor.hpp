#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/call_check.hpp"
#include "stretto/plan.hpp"
#include "transport/network.hpp"

namespace stretto {

// One rank's part in one collective: a plan and the buffers that it is about.
struct Execution {
  std::shared_ptr<const Plan> plan;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  DType dtype = DType::f32;  // of input and output
  DType wire = DType::f32;   // in which the plan runs: dtype, or f32 where narrow floats are to be rounded once
  ReduceOp op = ReduceOp::sum;
  double factor = 1;  // of premul_sum
  Links* links = nullptr;
  int first_lane = 0;  // of the links
  // STRETTO_CHECK: what is compared with the other ranks before the plan begins.
  CallCheck* check = nullptr;
  CheckedCall checked = {};
  std::string communicator = {};
};

// Executions that follow each other.
using Sequence = std::vector<Execution>;

// Runs the sequences in the calling thread, all progressing together, until they are complete. Two of them must not use the
// same lane of the same links in the same direction. Throws Error(timeout) after STRETTO_TIMEOUT seconds in which nothing
// moved (describe says what it was, for the sentence), and what the job or a link throws when a peer is lost; no buffer is
// in use any more when it returns or throws. in_background: on a stream's thread, beside this rank's computation.
void execute(const std::vector<Sequence>& sequences, Network& network, bool in_background,
             const std::function<std::string()>& describe);

}  // namespace stretto
