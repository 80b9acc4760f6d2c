#include "collectives/execution/run_until_done.hpp"

namespace stretto {
namespace {

// Between hosts, the last messages of a rank may still be on the wire, and a cable may be out for some seconds.
constexpr double seconds_to_hear_the_rest_elsewhere = 10;

}  // namespace

void check_present(const std::vector<int>& ranks, Network& network, double idle_seconds,
                   const std::function<std::string()>& what) {
  for (const int rank : ranks) {
    const bool all_has_come = network.over_shared_memory(rank) || idle_seconds > seconds_to_hear_the_rest_elsewhere;
    if (!all_has_come || !network.job().has_left(rank)) continue;
    const std::string loss = network.job().loss_of(rank);
    if (!loss.empty()) fail(ErrorCode::peer_lost, "{} Rank {} waits for it in {}", loss, network.job().rank(), what());
    fail(ErrorCode::peer_lost,
         "Rank {} has left the job (its body returned, or its communicators are gone), and rank {} waits for it in {}", rank,
         network.job().rank(), what());
  }
}

Error with_losses(const Error& error, const JobControl& job) {
  std::string sentences = error.what();
  for (int rank = 0; rank < job.size(); ++rank) {
    const std::string loss = job.loss_of(rank);
    if (!loss.empty()) sentences += " " + loss;
  }
  return {error.code(), sentences};
}

}  // namespace stretto
