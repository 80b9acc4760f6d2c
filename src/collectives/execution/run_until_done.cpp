#include "collectives/execution/run_until_done.hpp"

#include <chrono>
#include <thread>

#include "stretto/stream.hpp"

namespace stretto {
namespace {

// Between hosts, the last messages of a rank may still be on the wire, and a cable may be out for some seconds.
constexpr double seconds_to_hear_the_rest_elsewhere = 10;

constexpr double seconds_until_the_job_knows = 2;

}  // namespace

void check_present(const std::vector<int>& ranks, Network& network, double idle_seconds,
                   const std::function<std::string()>& what) {
  for (const int rank : ranks) {
    const bool all_has_come = network.over_shared_memory(rank) || idle_seconds > seconds_to_hear_the_rest_elsewhere;
    if (!all_has_come || !network.job().has_left(rank)) continue;
    const std::string loss = network.job().loss_of(rank);
    if (!loss.empty()) fail(ErrorCode::peer_lost, "{} Rank {} waits for it in {}", loss, network.job().rank(), what());
    throw LinkBroken(rank, ErrorCode::peer_lost,
                     fmt::format("Rank {} has left the job (its body returned, or its communicators are gone), and rank {} "
                                 "waits for it in {}",
                                 rank, network.job().rank(), what()));
  }
}

void throw_named(const LinkBroken& broken, const JobControl& job) {
  const double end = now_seconds() + seconds_until_the_job_knows;
  while (true) {
    job.check();
    if (!job.loss_of(broken.peer()).empty() || now_seconds() >= end) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::string sentences = broken.what();
  for (int rank = 0; rank < job.size(); ++rank) {
    const std::string loss = job.loss_of(rank);
    if (!loss.empty()) sentences += " " + loss;
  }
  throw Error(broken.code(), sentences);
}

}  // namespace stretto
