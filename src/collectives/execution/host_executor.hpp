#pragma once
#include <functional>
#include <string>
#include <vector>

#include "collectives/execution/execution.hpp"

namespace stretto {

// The executor's connection to the code that launched the calls.
class ExecutionListener {
 public:
  virtual ~ExecutionListener() = default;
  // The calls in a few words, and this rank's earlier operations: for the error message of a timeout.
  virtual std::string describe() const = 0;
  virtual std::string history() const = 0;
  // Called repeatedly while the calls wait. ranks() returns the awaited ranks, numbered in the job. May throw.
  virtual void still_wait(const std::function<std::vector<int>()>& /*ranks*/) {}
  // Reports the chosen variant of a call. Called only for calls that depend on memory, before their plan begins.
  virtual void decided(std::size_t /*call*/, const PlanVariant& /*variant*/) {}
};

// Runs the sequences in the calling thread, all progressing together, until they are complete. Two of them must not use the
// same lane of the same links in the same direction. Throws Error(timeout) after STRETTO_TIMEOUT seconds in which nothing
// moved, and the error of the job or a link if a peer is lost. No buffer is in use when it returns or throws. in_background:
// on a stream's thread, beside this rank's computation. All sequences have one priority among this rank's operations.
void execute(const std::vector<Sequence>& sequences, Network& network, bool in_background, Priority priority,
             ExecutionListener& listener);

}  // namespace stretto
