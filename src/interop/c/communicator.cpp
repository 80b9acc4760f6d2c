// Communicators of the C interface: the calls that make, query and destroy them.
#include <unistd.h>

#include "interop/c/group.hpp"
#include "interop/c/unique_id.hpp"
#include "stretto/device.hpp"

namespace stretto::c {
namespace {

// Returns the name in `config`, or `otherwise` if it has none. Throws for an invalid configuration.
std::string checked_name(const strettoConfig_t* config, std::string otherwise) {
  if (config == nullptr) return otherwise;
  const strettoConfig_t good = STRETTO_CONFIG_INITIALIZER;
  require(
      config->size == good.size && config->magic == good.magic && config->version / 100 == good.version / 100,
      "A strettoConfig_t was not set to STRETTO_CONFIG_INITIALIZER first, or comes from another version of stretto.h: it "
      "has {} bytes and version {}, and is to have {} and {}.",
      config->size, config->version, good.size, good.version);
  require(config->blocking == STRETTO_CONFIG_UNDEF_INT || config->blocking == 1,
          "A strettoConfig_t asks for blocking={}; only 1 is served: calls return when what they say has happened.",
          config->blocking);
  return config->commName == STRETTO_CONFIG_UNDEF_PTR ? otherwise : config->commName;
}

strettoComm_t added(Communicator communicator, const std::shared_ptr<Clique>& clique) {
  return communicators().add(std::make_shared<strettoComm>(std::move(communicator), clique));
}

Communicator join(int nranks, const strettoUniqueId& id, int rank, const std::string& name) {
  const MeetingPoint point = meeting_of(id, rank);
  if (nranks == 1) close(point.listener);
  return connect(rank, nranks, point, name);
}

void init_rank(strettoComm_t* comm, int nranks, const strettoUniqueId& id, int rank, const strettoConfig_t* config) {
  require(comm != nullptr, "A communicator was to be made with NULL for its handle.");
  *comm = STRETTO_COMM_NULL;
  require(nranks >= 1 && rank >= 0 && rank < nranks, "Rank {} is outside a communicator of {} ranks.", rank, nranks);
  const std::string name = checked_name(config, "world");
  const auto clique = clique_in_group(id);
  run_or_collect({comm, [=] { *comm = added(join(nranks, id, rank, name), clique); }});
}

void split(const std::shared_ptr<strettoComm>& comm, int color, int key, strettoComm_t* part,
           const strettoConfig_t* config) {
  require(part != nullptr, "A part of communicator '{}' was to be made with NULL for its handle.", comm->ranks.name());
  *part = STRETTO_COMM_NULL;
  require(color >= 0 || color == STRETTO_SPLIT_NOCOLOR, "Color {} is negative, and not STRETTO_SPLIT_NOCOLOR.", color);
  require_open(*comm);
  const std::string name = checked_name(config, fmt::format("{}.{}", comm->ranks.name(), color));
  run_or_collect({&comm->ranks.job().ledger(), [=] {
                    Communicator made = comm->ranks.split(color, key, name);
                    if (made) *part = added(std::move(made), comm->clique);
                  }});
}

// Removes the handle. The communicator ends when the last thread that uses it releases it.
std::shared_ptr<strettoComm> removed(strettoComm_t handle, const char* function) {
  require_usage(!in_group(), "{} was called inside a group, which only collects calls; end it first.", function);
  return communicators().remove(handle);
}

}  // namespace
}  // namespace stretto::c

using namespace stretto::c;
using Comm = std::shared_ptr<strettoComm>;
using stretto::require;

strettoResult_t strettoCommInitRank(strettoComm_t* comm, int nranks, strettoUniqueId id, int rank) {
  return fail_group(answer([&] { init_rank(comm, nranks, id, rank, nullptr); }));
}

strettoResult_t strettoCommInitRankConfig(strettoComm_t* comm, int nranks, strettoUniqueId id, int rank,
                                          strettoConfig_t* config) {
  return fail_group(answer([&] { init_rank(comm, nranks, id, rank, config); }));
}

strettoResult_t strettoCommInitAll(strettoComm_t* comms, int ndev, const int* devlist) {
  return answer([&] {
    require_usage(!in_group(), "strettoCommInitAll makes all ranks by itself, and was called inside a group.");
    require(comms != nullptr, "strettoCommInitAll got NULL for its {} handles.", ndev);
    require(ndev >= 1, "strettoCommInitAll was to make {} ranks; it makes at least 1.", ndev);
    require(devlist == nullptr,
            "strettoCommInitAll got a list of GPUs, and a process uses one at most; give NULL, or start a process a GPU.");
    strettoUniqueId id;
    const strettoResult_t made = strettoGetUniqueId(&id);
    if (made != strettoSuccess) throw PassedOn{{made, strettoGetLastError(nullptr)}};
    const auto clique = std::make_shared<Clique>();
    std::vector<std::function<void()>> ranks;
    for (int rank = 0; rank < ndev; ++rank) {
      comms[rank] = STRETTO_COMM_NULL;
      ranks.emplace_back([=] { comms[rank] = added(join(ndev, id, rank, "world"), clique); });
    }
    try {
      side_by_side(ranks);
    } catch (...) {  // usually all ranks have failed; no handle may remain
      for (int rank = 0; rank < ndev; ++rank) {
        if (comms[rank] != STRETTO_COMM_NULL) communicators().remove(comms[rank]);
        comms[rank] = STRETTO_COMM_NULL;
      }
      throw;
    }
  });
}

strettoResult_t strettoCommSplit(strettoComm_t handle, int color, int key, strettoComm_t* newcomm, strettoConfig_t* config) {
  return fail_group(answer_on(handle, [&](const Comm& comm) { split(comm, color, key, newcomm, config); }));
}

strettoResult_t strettoCommCount(const strettoComm_t handle, int* count) {
  return answer_on(handle, [&](const Comm& comm) {
    require(count != nullptr, "strettoCommCount got NULL for its result.");
    *count = comm->ranks.size();
  });
}

strettoResult_t strettoCommUserRank(const strettoComm_t handle, int* rank) {
  return answer_on(handle, [&](const Comm& comm) {
    require(rank != nullptr, "strettoCommUserRank got NULL for its result.");
    *rank = comm->ranks.rank();
  });
}

strettoResult_t strettoCommCuDevice(const strettoComm_t handle, int* device) {
  return answer_on(handle, [&](const Comm& /*all use the same*/) {
    require(device != nullptr, "strettoCommCuDevice got NULL for its result.");
    const auto gpu = stretto::gpu_info();
    if (!gpu) throw CudaFailure(stretto::Error(stretto::ErrorCode::unavailable, stretto::cuda_obstacle()));
    *device = gpu->index;
  });
}

strettoResult_t strettoCommGetAsyncError(strettoComm_t handle, strettoResult_t* asyncError) {
  return answer_on(handle, [&](const Comm& comm) {
    require(asyncError != nullptr, "strettoCommGetAsyncError got NULL for its result.");
    *asyncError = strettoSuccess;
    collect_ended(*comm, false);
    try {
      throw_async_error(*comm);
      comm->ranks.check_usable();
    } catch (...) {
      *asyncError = note(failure_of(std::current_exception()), comm.get());
    }
  });
}

strettoResult_t strettoCommFinalize(strettoComm_t handle) {
  return answer_on(handle, [&](const Comm& comm) {
    require_usage(!in_group(), "strettoCommFinalize was called inside a group, which only collects calls; end it first.");
    require_open(*comm);
    collect_ended(*comm, true);
    {
      const std::lock_guard lock(comm->mutex);
      comm->finalized = true;
    }
    throw_async_error(*comm);
  });
}

strettoResult_t strettoCommDestroy(strettoComm_t handle) {
  return answer([&] {
    Comm comm = removed(handle, "strettoCommDestroy");
    collect_ended(*comm, true);
    const Failure failure = comm->async_error;
    // Before the throw: a communicator that ends during an exception tells the other ranks that this one gave up.
    comm.reset();
    if (failure.result != strettoSuccess) throw PassedOn{failure};
  });
}

strettoResult_t strettoCommAbort(strettoComm_t handle) {
  return answer([&] {
    const Comm comm = removed(handle, "strettoCommAbort");
    comm->ranks.job().abort(fmt::format("strettoCommAbort was called for '{}'.", comm->ranks.name()));
    collect_ended(*comm, true);
  });
}
