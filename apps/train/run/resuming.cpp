#include "apps/train/run/resuming.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "apps/common/fail.hpp"
#include "stretto/layers/checkpoint.hpp"

namespace apps {

using namespace stretto;
namespace fs = std::filesystem;

namespace {

// Training saves checkpoints under the names of their steps. -1 for another name.
std::int64_t step_of(const fs::path& checkpoint) {
  long step = -1;
  std::sscanf(checkpoint.filename().c_str(), "step_%ld", &step);
  return step;
}

}  // namespace

void require_no_checkpoints(const CommandLine& line) {
  if (line.resume != Resume::no || line.save.empty()) return;
  std::error_code ignored;  // the directory may not exist yet; whether it can be written is tried before the first step
  require(!fs::exists(line.save + "/index.json", ignored),
          "--save {} is a checkpoint; give the directory around it, or another one.", line.save);
  std::int64_t newest = -1;
  for (const fs::directory_entry& entry : fs::directory_iterator(line.save, ignored)) {
    newest = std::max(newest, step_of(entry.path()));
  }
  require(newest < 0,
          "--save {} has checkpoints of another run, the newest of step {}; give --resume to go on from it, or another "
          "directory.",
          line.save, newest);
}

CommandLine resumed(CommandLine line) {
  line.resume = Resume::yes;
  line.load.clear();
  if (line.saves_adapters_only) return line;  // which are beside the model's files
  line.weights.load_hf.clear();
  line.weights.load_gguf.clear();
  return line;
}

CommandLine with_resume_decided(const CommandLine& line, const Communicator& world) {
  if (line.resume != Resume::if_any) return line;
  std::int64_t exists = world.rank() == 0 && has_checkpoint(line.save) ? 1 : 0;
  world.broadcast(&exists, &exists, 1, DType::i64, 0, Stream::inline_(), {.tag = "whether to resume"}).wait();
  if (exists != 0) return resumed(line);
  CommandLine begins = line;
  begins.resume = Resume::no;
  return begins;
}

void choose_as_saved(const CommandLine& line, const Communicator& world) {
  if (line.resume != Resume::yes) return;
  const std::string checkpoint = world.rank() == 0 ? find_checkpoint(line.save) : "";
  std::string choices = world.rank() == 0 ? choices_of_checkpoint(checkpoint) : "";
  broadcast_text(world, choices, "choices");
  if (choices.empty()) return;
  const std::string reason = world.choose_by(choices);
  if (reason.empty() || world.rank() != 0) return;
  fmt::print("Methods are not chosen as by the job that saved {}: {}. The last bits of sums may differ.\n", checkpoint,
             reason);
}

bool can_go_on(const CommandLine& line) { return !line.save.empty() && has_checkpoint(line.save); }
std::int64_t newest_step(const CommandLine& line) { return step_of(find_checkpoint(line.save)); }

void say_how_to_go_on(const CommandLine& line, int status, bool had_checkpoint) {
  const bool was_killed = status > 128;
  const bool resumes = line.resume != Resume::no;
  if (status == 0 || (had_checkpoint && !was_killed) || !can_go_on(line)) return;
  std::fprintf(stderr, "To go on after step %ld, give the same command%s.\n", static_cast<long>(newest_step(line)),
               resumes ? " again" : " with --resume");
}

Restarts::Restarts(CommandLine& line, const StopRequest& stop, const JobProgress& progress)
    : line_(line), stop_(stop), progress_(progress) {}

bool Restarts::after(const LostRank& lost) {
  const auto say = [&](const std::string& what_follows) {
    std::fprintf(stderr, "Rank %d %s; %s\n", lost.rank, lost.fate.c_str(), what_follows.c_str());
    return true;
  };
  if (stop_.asked() != 0) return !say("the job was asked to stop, and does not start again.");
  if (done_ == line_.max_restarts) return !say(fmt::format("all restarts of --max-restarts {} are used up.", done_));
  ++done_;
  const std::string which = fmt::format("restart {} of {}", done_, line_.max_restarts);
  if (!can_go_on(line_)) return say(fmt::format("{} begins again: the job has no checkpoint yet.", which));
  line_.resume = Resume::if_any;
  const std::int64_t step = newest_step(line_);
  return say(fmt::format("{} goes on after step {}{}.", which, step, progress_.lost_behind(step)));
}

}  // namespace apps
