#include "resuming.hpp"

#include <cstdio>
#include <filesystem>

#include "fail.hpp"
#include "stretto/layers/checkpoint.hpp"

namespace gpt {

using namespace stretto;
namespace fs = std::filesystem;

namespace {

// The newest checkpoint and when it was written, since a later one may have the same name; empty if there is none.
std::string newest_in(const std::string& save) {
  if (save.empty() || !has_checkpoint(save)) return "";
  const fs::path checkpoint = find_checkpoint(save);
  std::error_code ignored;
  const auto written = fs::last_write_time(checkpoint / "index.json", ignored);
  return fmt::format("{} {}", checkpoint.string(), written.time_since_epoch().count());
}

}  // namespace

CommandLine resumed(CommandLine line) {
  line.resume = Resume::yes;
  line.load.clear();
  line.hf.load.clear();
  return line;
}

CommandLine with_resume_decided(const CommandLine& line, const Communicator& world) {
  if (line.resume != Resume::if_any) return line;
  std::int64_t exists = world.rank() == 0 && has_checkpoint(line.save) ? 1 : 0;
  world.broadcast(&exists, &exists, 1, DType::i64, 0, Stream::inline_(), {.tag = "whether to resume"});
  if (exists != 0) return resumed(line);
  CommandLine begins = line;
  begins.resume = Resume::no;
  return begins;
}

OwnCheckpoints::OwnCheckpoints(const CommandLine& line)
    : directory_(line.save), of_another_job_(line.resume == Resume::no ? newest_in(line.save) : "") {}

bool OwnCheckpoints::any() const { return newest_in(directory_) != of_another_job_; }

std::int64_t OwnCheckpoints::newest_step() const {
  long step = 0;  // training saves them under the names of their steps
  std::sscanf(fs::path(find_checkpoint(directory_)).filename().c_str(), "step_%ld", &step);
  return step;
}

Restarts::Restarts(CommandLine& line, const StopRequest& stop) : line_(line), stop_(stop), checkpoints_(line) {}

bool Restarts::after(const LostRank& lost) {
  const auto say = [&](const std::string& what_follows) {
    std::fprintf(stderr, "Rank %d %s; %s\n", lost.rank, lost.fate.c_str(), what_follows.c_str());
    return true;
  };
  if (stop_.asked() != 0) return !say("the job was asked to stop, and does not start again.");
  if (done_ == line_.max_restarts) return !say(fmt::format("all restarts of --max-restarts {} are used up.", done_));
  ++done_;
  const std::string which = fmt::format("restart {} of {}", done_, line_.max_restarts);
  if (!checkpoints_.any()) return say(fmt::format("{} begins again: the job has no checkpoint yet.", which));
  line_.resume = Resume::if_any;
  return say(fmt::format("{} goes on after step {}.", which, checkpoints_.newest_step()));
}

}  // namespace gpt
