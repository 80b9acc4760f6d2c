#pragma once
#include <functional>
#include <string>

#include "stretto/plan.hpp"
#include "transport/network.hpp"

namespace stretto {

struct Execution {
  const Plan& plan;
  const std::byte* input;
  std::byte* output;
  DType dtype;
  ReduceOp op;
  bool in_background;                     // on a stream's thread, beside this rank's computation
  std::function<std::string()> describe;  // for the sentence of a timeout
};

// Runs one rank's plan in the calling thread until it is complete. Throws Error(timeout) after STRETTO_TIMEOUT seconds in
// which nothing moved, and what the job or a link throws when a peer is lost; no buffer is in use any more when it returns
// or throws.
void execute(const Execution& execution, Network& network, Links& links);

}  // namespace stretto
