#pragma once
#include <cstdint>
#include <string>

#include "apps/train/options/command_line.hpp"
#include "apps/train/run/job_progress.hpp"
#include "apps/train/run/stop_request.hpp"
#include "stretto/launch.hpp"

namespace apps {

// Decides Resume::if_any, alike on all ranks. Collective.
CommandLine with_resume_decided(const CommandLine& line, const stretto::Communicator& world);

// A resumed job chooses methods as the job that saved the checkpoint, so that sums have the same bits; where it cannot, rank
// 0 prints why. Collective, before other communicators are made. Does nothing without --resume.
void choose_as_saved(const CommandLine& line, const stretto::Communicator& world);

// The command line with Resume::yes, and without what training began with.
CommandLine resumed(CommandLine line);

// Without --resume a job begins in a directory without checkpoints: it would mix those of another run with its own. Called
// once, when the job starts. Throws Error(invalid_argument).
void require_no_checkpoints(const CommandLine& line);

// Whether there is a checkpoint under --save from which the job goes on after a loss, and the newest one's step.
bool can_go_on(const CommandLine& line);
std::int64_t newest_step(const CommandLine& line);

// Behind the errors of a job that ended with this status: prints how it goes on, if there is a checkpoint. If there was one
// when it began, only a job that was killed is told: the others may have been refused.
void say_how_to_go_on(const CommandLine& line, int status, bool had_checkpoint);

// --max-restarts: after a loss, all ranks start again from the job's newest checkpoint, or as they started first.
class Restarts {
 public:
  // `line` is what ranks get that start again. All must outlive the object.
  Restarts(CommandLine& line, const StopRequest& stop, const JobProgress& progress);
  // Called when the ranks have ended. Prints who was lost and what follows. Returns whether to start again.
  bool after(const stretto::LostRank& lost);

 private:
  CommandLine& line_;
  const StopRequest& stop_;
  const JobProgress& progress_;
  int done_ = 0;
};

}  // namespace apps
