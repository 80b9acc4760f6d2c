#pragma once
#include <cstdint>
#include <string>

#include "options.hpp"
#include "stop_request.hpp"
#include "stretto/launch.hpp"

namespace gpt {

// Decides Resume::if_any, alike on all ranks. Collective.
CommandLine with_resume_decided(const CommandLine& line, const stretto::Communicator& world);

// --max-restarts: after a loss, all ranks start again from the newest checkpoint that this job has written, or is a
// resumption of; without one, as they started first.
class Restarts {
 public:
  // `line` is what ranks get that start again. Both must outlive the object.
  Restarts(CommandLine& line, const StopRequest& stop);
  // Called when the ranks have ended. Prints who was lost and what follows. Returns whether to start again.
  bool after(const stretto::LostRank& lost);

 private:
  CommandLine& line_;
  const StopRequest& stop_;
  std::string of_another_job_;  // the newest checkpoint at the start, if the job does not go on from it
  int done_ = 0;
};

}  // namespace gpt
