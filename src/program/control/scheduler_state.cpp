// Scheduler: what it says of itself.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>

#include "program/control/scheduler.hpp"
#include "stretto/stream.hpp"

namespace stretto {

std::string Scheduler::state() const {
  const std::lock_guard lock(mutex_);
  const double now = now_seconds();
  const auto is_here = [&](const auto& client) { return !lost_clients_.contains(client.first); };  // some never compiled
  std::string text = fmt::format("Scheduler of programs, process {}; executors: {}, clients: {}, programs: {}\n", getpid(),
                                 live_executors().size(), std::ranges::count_if(clients_, is_here), programs_.size());
  for (const auto& [rank, client] : clients_) {
    text += fmt::format("Client '{}', rank {}, weight {}: {} runs over{}\n", client.name, rank, client.weight, client.runs,
                        lost_clients_.contains(rank) ? "; it is lost" : "");
    for (const auto& [number, program] : programs_) {
      if (program.client == rank) text += state_of(program);
    }
  }
  for (int executor = 0; executor < executors_; ++executor) {
    text += fmt::format("Executor {}: ", executor);
    text += lost_executors_.contains(executor)
                ? "it is lost\n"
                : fmt::format("{} runs given to it are not over; in the last {} s busy{}\n",
                              load_[static_cast<std::size_t>(executor)], BusySeconds::window, busy_for(executor, now));
  }
  return text;
}

std::string Scheduler::state_of(const ScheduledProgram& program) {
  std::int64_t waiting = 0;
  for (const Submission& each : program.submissions) waiting += each.waiting;
  std::string text =
      fmt::format("  program '{}' on executors {}: {} calls of run(), {} runs wait", program.setup.program.name(),
                  fmt::join(program.executors, ", "), program.submissions.size(), waiting);
  for (const auto& [clock, run] : program.runs) {
    text += fmt::format("; run {} is under way on executors {}", clock, fmt::join(run.missing, ", "));
  }
  if (!program.not_ready.empty()) {
    text += fmt::format("; it is being prepared on executors {}", fmt::join(awaited_of(program), ", "));
  }
  if (program.lost.executor >= 0) text += fmt::format("; it needs executor {}, which is lost", program.lost.executor);
  return text + "\n";
}

std::string Scheduler::busy_for(int executor, double now) const {
  std::string text;
  double all = 0;
  for (const auto& [whom, busy] : busy_seconds_) {
    if (whom.first != executor) continue;
    const double share = busy.share(now);
    all += share;
    text += fmt::format("{} {:.0f}% for '{}'", text.empty() ? ":" : ",", 100 * share, clients_.at(whom.second).name);
  }
  return fmt::format(" {:.0f}%", 100 * all) + text;
}

}  // namespace stretto
