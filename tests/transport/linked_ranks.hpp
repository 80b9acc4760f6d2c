#pragma once
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "transport/gpu/gpu_ranks.hpp"
#include "transport/links.hpp"

namespace stretto {

// Runs ranks as threads with a job and the host's links between them. Returns each rank's error message, empty without an
// error. A rank whose body throws aborts the job with that message and leaves it.
inline std::vector<std::string> on_linked_ranks(int size, const std::function<void(Links& links, JobControl& job)>& body) {
  const auto jobs = make_local_jobs(size);
  return on_ranks(size, [&](int rank) {
    JobControl& job = *jobs[static_cast<std::size_t>(rank)];
    Network network(job);
    Membership members;
    members.rank = rank;
    const Area area = network.segment().reserve(Links::area_bytes(size));
    const auto* bytes = reinterpret_cast<const std::byte*>(&area);
    for (const Bytes& said : job.exchange(Bytes(bytes, bytes + sizeof area))) {
      Area theirs;
      std::memcpy(&theirs, said.data(), sizeof theirs);
      members.areas.push_back(theirs);
      members.job_ranks.push_back(static_cast<int>(members.job_ranks.size()));
    }
    Links links(network, members, size);
    try {
      body(links, job);
    } catch (const std::exception& error) {
      job.abort(error.what());
      job.leave();
      throw;
    }
    job.leave();
  });
}

}  // namespace stretto
