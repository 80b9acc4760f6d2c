// stretto-perf: times collectives and checks their results, with nccl-tests' options and table.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <tuple>

#include "apps/common/exit_status.hpp"
#include "common/fail.hpp"
#include "perf/run.hpp"
#include "perf/verbs.hpp"
#include "stretto/launch.hpp"
#ifdef STRETTO_HAVE_MPI
#include "perf/peers/mpi_peer.hpp"
#endif

namespace perf {

namespace {

// Called before there are ranks, which read the settings when they begin.
void set_environment(const Options& options) {
  if (options.deterministic) setenv("STRETTO_DETERMINISTIC", "1", 1);
  if (!options.ranks_per_node.empty()) setenv("STRETTO_RANKS_PER_NODE", options.ranks_per_node.c_str(), 1);
}

// An option that does not fit the ranks is wrong on all of them: rank 0 looks first, so that the error is printed once.
template <class Look>
void rank0_first(const stretto::Communicator& world, Look look) {
  if (world.rank() != 0) world.barrier(stretto::Stream::inline_()).wait();
  look();
  if (world.rank() == 0) world.barrier(stretto::Stream::inline_()).wait();
}

int start(const Options& options, [[maybe_unused]] char** argv) {
  set_environment(options);
  std::signal(SIGUSR1, SIG_IGN);  // for the parent of ranks, so that the signal can be sent to all processes of the job
  const auto body = [&](const stretto::Communicator& world) {
    stretto::write_flights_on(SIGUSR1);
    rank0_first(world, [&] {
      options.check_for(world.size());
      const stretto::OnDevice there(options.device);  // throws the reason if there is no such device
    });
    const stretto::OnDevice device(options.device);
    if (options.device == stretto::Device::cuda) {  // the first call for GPUs is collective
      std::ignore =
          world.all_reduce(stretto::Tensor::zeros({1}, stretto::DType::f32), stretto::ReduceOp::sum, stretto::computation());
      stretto::computation().synchronize();
    }
    rank0_first(world, [&] { check_methods(world, options); });
    run_tests(world, options);
  };
  if (options.threads) {
    stretto::run_threads(options.nproc, body);
    return 0;
  }
#ifdef STRETTO_HAVE_MPI
  if (const int ranks = stretto::mpirun_ranks(); ranks > 0) {
    require(options.nproc == 0 || options.nproc == ranks, "mpirun started {} ranks, but --nproc asks for {}.", ranks,
            options.nproc);
    return run_under_mpi(body);
  }
  if (options.has_peer("mpi")) {
    require(options.nproc > 0, "--vs mpi needs ranks that MPI has started; give --nproc N, or start this under mpirun.");
    restart_under_mpirun(options.nproc, argv);
  }
#endif
  return stretto::launch(options.nproc, body);
}

}  // namespace
}  // namespace perf

int main(int argc, char** argv) {
  return apps::exit_status([&] {
    const std::string verb = argc > 1 ? argv[1] : "";
    if (verb == "calibrate") return perf::calibrate(argc - 1, argv + 1);
    if (verb == "overlap") return perf::measure_overlap_case(argc - 1, argv + 1);
    if (verb == "stragglers") return perf::find_stragglers(argc - 1, argv + 1);
    if (verb == "selection") return perf::check_selection(argc - 1, argv + 1);
    const auto options = perf::parse_command_line(argc, argv);
    return options ? perf::start(*options, argv) : 0;
  });
}
