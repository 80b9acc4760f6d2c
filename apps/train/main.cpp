// stretto-train: trains a GPT on the bytes of a text or on tokens, data, tensor and pipeline parallel.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "apps/common/exit_status.hpp"
#include "apps/common/fail.hpp"
#include "apps/train/measure/calibration.hpp"
#include "apps/train/options/options.hpp"
#include "apps/train/report/training_plan.hpp"
#include "apps/train/run/beginning.hpp"
#include "apps/train/run/elastic.hpp"
#include "apps/train/run/rejoin.hpp"
#include "apps/train/run/resuming.hpp"
#include "apps/train/run/served.hpp"
#include "apps/train/run/stop_request.hpp"
#include "apps/train/run/training_run.hpp"
#include "stretto/device.hpp"
#include "stretto/layers/optimizers.hpp"
#include "stretto/stretto.hpp"
#ifdef STRETTO_HAVE_MPI
#include "stretto/mpi.hpp"
#endif

namespace apps {

using namespace stretto;

namespace {

constexpr std::size_t layouts_to_show = 5;

// The directories of files with state.
std::vector<std::string> directories_of(const TrainingOptions& trainer) {
  const ShardedParameters::Options::Offload& files = trainer.sharding.offload;
  std::set<std::string> directories = {files.optimizer.directory, files.gradients.directory, files.values.directory,
                                       trainer.recompute.directory};
  directories.erase("");
  return {directories.begin(), directories.end()};
}

void train(const Communicator& world, const CommandLine& given, StopRequest& stop, Rejoin& rejoin, JobProgress& progress) {
  stop.take_signals(true);
  if (rejoin.joined()) return train_and_go_on(world, given, stop, rejoin, progress);
  require_same(world, given.values);
  rank0_first(world, [&] {
    given.check(world.size(), world.rank());
    if (given.nproc == 0 && world.rank() == 0) require_no_checkpoints(given);
    const OnDevice there(given.device);  // throws the reason if there is no such device
  });
  const CommandLine line = with_resume_decided(given, world);
  if (line.trainer.servers.copies == 0) choose_as_saved(line, world);  // else those of the workers
  const OnDevice device(line.device);
  if (line.trainer.servers.any()) return train_with_servers(world, line, stop, progress);
  if (!line.layout.automatic) return train_and_go_on(world, line, stop, rejoin, progress);
  // All ranks have the same figures, and therefore choose alike; DeMo's memory grows with a setting besides.
  if (kind_of(line.trainer.optimizer).coefficients) {
    const char* const threads = std::getenv("STRETTO_COMPUTE_THREADS");
    require_same(world, {{"STRETTO_COMPUTE_THREADS", threads == nullptr ? "1" : threads}});
  }
  const Calibration machine =
      calibrate(world, line.trainer.model, line.trainer.sharding.dtype, directories_of(line.trainer));
  const LayoutSpace space = layout_space(line, world.size(), machine.cluster.memory_bytes);
  const LayoutSearch search = search_layouts(space, machine.cluster, layouts_to_show, machine.system);
  const CommandLine chosen = with_layout(line, space, search);
  if (world.rank() == 0) fmt::print("{}\n", layout_report(search));
  train_and_go_on(world, chosen, stop, rejoin, progress);
}

int dry_run(const CommandLine& given) {
  const int ranks = given.planned_ranks > 0 ? given.planned_ranks : given.nproc;
  require(ranks >= 1, "--dry-run needs --ranks N, the number of ranks to plan for.");
  CommandLine line = given;
  if (given.layout.automatic) {
    const TrainingCluster cluster = training_cluster_from_file(given.layout.cluster);
    const LayoutSpace space = layout_space(given, ranks, cluster.memory_bytes);
    const LayoutSearch search = search_layouts(space, cluster, layouts_to_show, default_system(cluster));
    line = with_layout(given, space, search);
    fmt::print("{}\n", layout_report(search));
  }
  TrainingOptions options = line.trainer.on(line.mesh_on(ranks));
  if (line.default_batch) {
    options.global_batch = options.micro_batch * options.mesh.ranks_over(sequence_axes) * options.mesh[Axis::pipeline] *
                           options.diloco.replicas;
  }
  const TrainingPlan plan = plan_training(options);
  fmt::print("{} parameters on {} ranks\n{}\n{}\n", plan.parameters, plan.ranks, memory_table(plan), traffic_table(plan));
  if (!line.json.empty()) write_plan(plan, line.json);
  return 0;
}

// kill -USR1 asks every process of the job for its last operations. The parent of ranks has none, and goes on.
void use_flight_recorder(const CommandLine& line) {
  if (!line.log_dir.empty()) setenv("STRETTO_FLIGHT_DIR", (line.log_dir + "/flight").c_str(), 0);
  std::signal(SIGUSR1, SIG_IGN);
}

int start(CommandLine line) {
  if (line.dry_run) return dry_run(line);
  use_flight_recorder(line);
  if (line.deterministic) setenv("STRETTO_DETERMINISTIC", "1", 1);  // before there are ranks, which read the setting
  StopRequest stop;
  if (line.relayouts_on_signal()) stop.take_layout_signals();
  Rejoin rejoin(line.nproc, line.rejoin);
  JobProgress progress;
  const CommandLine given = line;  // restarts change it
  const bool had_checkpoint = can_go_on(line);
  int rank = 0;
  const auto body = [&](const Communicator& world) {
    write_flights_on(SIGUSR1);
    rank = world.rank();
    train(world, line, stop, rejoin, progress);
  };
  const auto status_of = [&](int status) {
    if (rank == 0 && stop.asked() == 0) say_how_to_go_on(given, status, had_checkpoint);
    return status == 0 && stop.agreed() == SIGINT ? 128 + SIGINT : status;
  };
  if (line.nproc > 0) {
    line.check(line.nproc);  // the parent reports an error once
    require_no_checkpoints(line);
    stop.take_signals(false);
    Restarts restarts(line, stop, progress);
    LaunchOptions options{.starts_again = {}, .survivors_go_on = line.elastic || line.trainer.servers.copies > 0};
    if (rejoin.any()) {
      options.replacements = {[&](int left) { return rejoin.wanted(left); }, [&] { return rejoin.join(); }};
    }
    if (line.max_restarts > 0) {
      options.starts_again = [&](const LostRank& lost) {
        const bool again = restarts.after(lost);
        stop.take_signals(!again);
        if (again) rejoin.starts_again();
        return again;
      };
    }
    return status_of(launch(line.nproc, body, options));
  }
#ifdef STRETTO_HAVE_MPI
  if (mpirun_ranks() > 0) {
    MPI_Init(nullptr, nullptr);
    const int status = run(connect(MPI_COMM_WORLD, true), body);
    const int told = status_of(status);
    if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);  // MPI_Finalize would wait for ranks that have ended
    MPI_Finalize();
    return told;
  }
#endif
  return status_of(launch(0, body));
}

}  // namespace
}  // namespace apps

int main(int argc, char** argv) {
  return apps::exit_status([&] {
    const auto line = apps::parse_command_line(argc, argv);
    return line ? apps::start(*line) : 0;
  });
}
