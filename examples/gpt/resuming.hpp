#pragma once
#include <cstdint>
#include <string>

#include "options.hpp"
#include "stop_request.hpp"
#include "stretto/launch.hpp"

namespace gpt {

// Decides Resume::if_any, alike on all ranks. Collective.
CommandLine with_resume_decided(const CommandLine& line, const stretto::Communicator& world);

// The command line with Resume::yes, and without what training began with.
CommandLine resumed(CommandLine line);

// The checkpoints under --save from which a job goes on after a loss: those that it has written, and with --resume also
// those that were there.
class OwnCheckpoints {
 public:
  explicit OwnCheckpoints(const CommandLine& line);  // when the job starts
  bool any() const;
  std::int64_t newest_step() const;  // if there are any

 private:
  std::string directory_;
  std::string of_another_job_;  // the newest one at the start
};

// --max-restarts: after a loss, all ranks start again from the job's newest checkpoint, or as they started first.
class Restarts {
 public:
  // `line` is what ranks get that start again. Both must outlive the object.
  Restarts(CommandLine& line, const StopRequest& stop);
  // Called when the ranks have ended. Prints who was lost and what follows. Returns whether to start again.
  bool after(const stretto::LostRank& lost);

 private:
  CommandLine& line_;
  const StopRequest& stop_;
  OwnCheckpoints checkpoints_;
  int done_ = 0;
};

}  // namespace gpt
