// Measures tokens per second of training on random tokens by any layout of ranks, as one JSON line: the counterpart of the
// GPTs of peers/, and on a GPU of perf/gpu/gpt2.py.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "../gpu/gpu_data.hpp"
#include "apps/common/exit_status.hpp"
#include "apps/common/median.hpp"
#include "apps/train/measure/calibration.hpp"
#include "apps/train/options/pipeline_options.hpp"
#include "apps/train/options/sequence_options.hpp"
#include "apps/train/options/zero_options.hpp"
#include "apps/train/report/training_plan.hpp"
#include "stretto/device.hpp"
#include "stretto/error.hpp"
#include "stretto/kernels.hpp"
#include "stretto/launch.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "stretto/layers/replicated_state.hpp"
#include "stretto/models/families.hpp"
#include "stretto/models/trainer.hpp"
#include "stretto/output_file.hpp"

namespace {

using namespace stretto;

using apps::median;

// The time on the clock of this thread's device when all earlier work of computation() is done, in seconds.
double device_now() {
  const Work mark = computation().enqueue([] {});
  mark.wait();
  return mark.times().done;
}

// Bytes that have left this host through a network interface.
std::uint64_t sent_through(const std::string& interface) {
  std::ifstream file("/sys/class/net/" + interface + "/statistics/tx_bytes");
  std::uint64_t bytes = 0;
  if (!(file >> bytes)) throw Error(ErrorCode::invalid_argument, "--interface " + interface + " is none of this host's.");
  return bytes;
}

// The best rate of the model's own matrix products on one rank, while all ranks do the same; FLOP/s.
double peak_matrix_rate(const Communicator& world, const DecoderShape& model, std::int64_t rows, DType dtype) {
  const int calls = current_device() == Device::cpu ? 1 : 10;  // one after the other, since a GPU idles between marks
  double best = 0;
  for (const Product& product : decoder_cost(model, {}, {}, {.count = rows}).block.forward.products) {
    const std::int64_t in = product.k, out = product.n;
    const Tensor x = perf::random({rows, in}, dtype);
    const Tensor weight = perf::random({out, in}, dtype, 0.02);
    const Tensor y({rows, out}, dtype);
    world.barrier(Stream::inline_()).wait();
    for (int round = 0; round < 8; ++round) {
      const double from = device_now();
      for (int call = 0; call < calls; ++call) kernels::gemm(x, kernels::Transpose::no, weight, kernels::Transpose::yes, y);
      best = std::max(best, 2.0 * calls * static_cast<double>(rows * in * out) / (device_now() - from));
    }
  }
  return best;
}

// With --replicate-state, steps come in blocks: one without, two with, two without, ..., so that a machine that slows down
// slows down both. The last steps of the warm-up are with, so that memory is there.
constexpr int block_steps = 4;
bool replicates_after(int timed_step) { return timed_step < 0 ? timed_step >= -2 : (timed_step / block_steps + 1) % 4 >= 2; }

// Of the products with weights: one in forward, one for the gradient of its input, and one for that of a weight that is
// trained.
double weight_flops_per_token(const Parameters& parameters) {
  double flops = 0;
  for (const auto& parameter : parameters.all()) {
    double elements = 1;
    for (const std::int64_t extent : parameter->global_shape) elements *= static_cast<double>(extent);
    flops += elements * (parameter->trainable ? 6 : 4);
  }
  return flops;
}

// Writes what the planner of layouts needs of the machine: {"cluster": TrainingCluster, "system": TrainingSystem}.
void write_calibration(const apps::Calibration& machine, const std::string& path) {
  nlohmann::ordered_json json{{"cluster", nlohmann::ordered_json::parse(to_text(machine.cluster))},
                              {"system",
                               {{"overlaps_products", machine.system.overlaps_products},
                                {"overlaps_weights", machine.system.overlaps_weights},
                                {"hidden_sums", machine.system.hidden_sums}}}};
  if (machine.system.hidden_sums_between) json["system"]["hidden_sums_between"] = *machine.system.hidden_sums_between;
  write_output_file(path, json.dump(1) + '\n');
}

int measure(int argc, char** argv) {
  int nproc = 2;
  int steps = 5;
  int warmup = 4;  // at ZeRO stage 0 the first three are measured, to choose what is gathered when
  TrainingOptions options;
  options.model = {.layers = 6, .hidden = 384, .heads = 6, .sequence = 256, .vocabulary = 65};
  options.micro_batch = 6;
  CLI::App app("Measures training steps on random tokens");
  app.add_option("--nproc", nproc, "Ranks to start on this host; 0: a launcher has started this one");
  app.add_option("--steps", steps);
  app.add_option("--warmup", warmup);
  app.add_option("--layers", options.model.layers);
  app.add_option("--hidden", options.model.hidden);
  app.add_option("--heads", options.model.heads);
  app.add_option("--seq-length", options.model.sequence);
  app.add_option("--vocab", options.model.vocabulary);
  bool is_llama = false;
  app.add_flag("--llama", is_llama, "A Llama instead of a GPT-2");
  app.add_option("--kv-heads", options.model.kv_heads);
  app.add_flag("!--untied", options.model.tied, "The head has weights of its own");
  app.add_option("--mlp", options.model.mlp_width);
  app.add_option("--batch", options.micro_batch, "Sequences of a microbatch");
  app.add_option("--lora", options.adapters.rank, "Train adapters of this rank of all linear modules");
  std::int64_t microbatches = 1;
  app.add_option("--microbatches", microbatches, "Microbatches of a step, of a data-parallel rank")
      ->check(CLI::PositiveNumber);
  MeshShape& shape = options.mesh;
  apps::add_pipeline_options(app, options);
  app.add_option("--tp", shape[Axis::tensor], "Ranks that share each layer");
  apps::add_sequence_options(app, options);
  app.add_flag("!--no-overlap", options.sharding.overlap, "Communicate after computing");
  app.add_option("--unit-bytes", options.sharding.unit_bytes, "Bytes of gradients that are summed together");
  apps::add_zero_options(app, options);
  app.add_option_function<std::string>(
         "--dtype", [&](const std::string& name) { options.sharding.dtype = name == "fp32" ? DType::f32 : DType::bf16; })
      ->check(CLI::IsMember({"fp32", "bf16"}));
  std::string interface;
  app.add_option("--interface", interface, "Network interface whose sent bytes are counted");
  std::string save;
  bool in_background = false;
  app.add_option("--save", save,
                 "Begin a checkpoint in this directory before every timed step; the step's time contains that");
  app.add_flag("--save-in-background", in_background,
               "Save in the background: a step that finds the last checkpoint complete begins another one")
      ->needs("--save");
  bool replicates = false;
  auto* const replicate =
      app.add_flag("--replicate-state", replicates,
                   "Keep each rank's state in another one's memory after every step of half the blocks of 4 "
                   "steps, and compare these blocks with the others; --steps must be a multiple of 8");
  std::string device = "cpu";
  app.add_option("--device", device, "Where to train: cpu, cuda");
  std::string calibration;
  app.add_option("--calibrate", calibration, "Measure the machine instead, for the planner of layouts, into this file");
  CLI11_PARSE(app, argc, argv);
  if (is_llama) options.model = llama_shape(options.model);
  if (options.adapters.any()) {
    options.adapters.alpha = 2 * static_cast<double>(options.adapters.rank);
    options.adapters.targets = {"all-linear"};
  }
  apps::check_zero_options(app, options);
  if (replicates && steps % (2 * block_steps) != 0) {
    throw Error(ErrorCode::invalid_argument, replicate->get_name() + " needs --steps of a multiple of 8.");
  }
  return launch(nproc, [&](const Communicator& world) {
    const OnDevice on_device(device_from_name(device));
    if (!calibration.empty()) {
      const apps::Calibration machine = apps::calibrate(world, options.model, options.sharding.dtype, {});
      if (world.rank() == 0) write_calibration(machine, calibration);
      return;
    }
    MeshShape on_all_ranks = shape;
    on_all_ranks[Axis::data] = world.size() / static_cast<int>(shape.ranks());
    const Mesh mesh(world, on_all_ranks);
    options.global_batch = options.micro_batch * microbatches * mesh.size(sequence_axes);
    Trainer trainer(mesh, options);
    if (!trainer.flushes() && (replicates || !save.empty())) {
      throw Error(ErrorCode::invalid_argument, "Between steps without a flush nothing can be saved; leave --save out.");
    }
    const std::int64_t sequence = options.model.sequence;
    const std::int64_t rows = options.micro_batch * sequence / shape.ranks_over({Axis::ring, Axis::ulysses});
    const double rate = peak_matrix_rate(world, options.model, rows, options.sharding.dtype);
    std::unique_ptr<CheckpointSaver> saver;
    if (!save.empty()) {
      saver = std::make_unique<CheckpointSaver>(trainer.sharded(), trainer.optimizer(), save,
                                                CheckpointSaver::Options{.in_background = in_background, .keep = 1});
    }
    ReplicatedState state;
    if (replicates) state.begin(world);
    int checkpoints = 0;
    std::vector<double> seconds;
    std::map<std::string, std::vector<double>> pipeline;  // by the name of the figure
    std::uint64_t first_operation = 0;
    std::uint64_t sent = 0;
    const auto text_of = [&](std::int64_t step) -> FillSlot {
      return [&, step](std::int64_t slot, std::int32_t* tokens, std::int32_t* targets) {
        for (std::int64_t i = 0; i <= sequence; ++i) {
          const auto token =
              static_cast<std::int32_t>((slot * 7919 + step * 104729 + i * i * 31) % options.model.vocabulary);
          if (i < sequence) tokens[i] = token;
          if (i > 0) targets[i - 1] = token;
        }
      };
    };
    const auto note_pipeline = [&] {
      if (mesh.size(Axis::pipeline) == 1) return;
      const Pipeline::Times times = trainer.pipeline().times();
      pipeline["bubble"].push_back(times.bubble());
      pipeline["simulated_bubble"].push_back(times.simulated_bubble());
      pipeline["pipeline_ms"].push_back(times.measured * 1e3);
      pipeline["simulated_ms"].push_back(times.simulated * 1e3);
    };
    if (!trainer.flushes()) {  // timed together, from an empty pipeline to an empty one
      const auto run = [&](std::int64_t count) {
        trainer.run({.count = count, .fill_of = text_of, .lr_of = [](std::int64_t) { return 3e-4; }, .done = {}});
      };
      if (warmup > 0) run(warmup);
      first_operation = world.job().ledger().next_sequence();
      const double from = device_now();
      run(steps);
      seconds.assign(static_cast<std::size_t>(steps), (device_now() - from) / steps);
      note_pipeline();
    }
    for (int step = 0; trainer.flushes() && step < warmup + steps; ++step) {
      if (step == warmup) {
        first_operation = world.job().ledger().next_sequence();
        if (!interface.empty()) sent = sent_through(interface);
      }
      const double from = device_now();
      if (saver && step >= warmup) {
        std::int64_t idle = saver->is_idle() ? 1 : 0;
        world.all_reduce(&idle, &idle, 1, DType::i64, ReduceOp::min, Stream::inline_()).wait();
        if (idle != 0) {
          saver->save(step);
          ++checkpoints;
        }
      }
      trainer.step(text_of(step), 3e-4);
      if (replicates && replicates_after(step - warmup)) {
        state.keep(trainer.sharded(), trainer.optimizer(), step + 1);
        if ((step + 1 - warmup) % block_steps == 0) state.wait();
      }
      if (step < warmup) continue;
      seconds.push_back(device_now() - from);
      note_pipeline();
    }
    if (saver) saver->wait();
    trainer.sharded().wait_for_values();
    const Traffic traffic = world.job().ledger().traffic(first_operation);
    if (world.rank() != 0) return;
    const double step_seconds = median(seconds);
    const double tokens_per_second = static_cast<double>(options.global_batch * sequence) / step_seconds;
    const double flops = flops_per_token(options.model, options.adapters);
    nlohmann::ordered_json result{{"tokens_per_s", tokens_per_second},
                                  {"step_ms", step_seconds * 1e3},
                                  {"mean_ms", std::accumulate(seconds.begin(), seconds.end(), 0.0) / steps * 1e3},
                                  {"steps", steps},
                                  {"parameters", trainer.parameters().global_elements()},
                                  {"weight_flops_per_token", weight_flops_per_token(trainer.parameters())},
                                  {"gemm_gflops_per_rank", rate * 1e-9},
                                  {"gemm_share", tokens_per_second * flops / (rate * world.size())},
                                  {"comm_ms", traffic.busy_seconds / steps * 1e3},
                                  {"exposed_ms", traffic.exposed_seconds / steps * 1e3},
                                  {"units", trainer.sharded().unit_count()}};
    if (saver) result["checkpoints"] = checkpoints;
    if (replicates) {
      const auto half = [&](bool with) {
        std::vector<double> blocks;
        for (int first = 0; first < steps; first += block_steps) {
          const auto begin = seconds.begin() + first;
          if (replicates_after(first) == with) blocks.push_back(std::accumulate(begin, begin + block_steps, 0.0));
        }
        return blocks;
      };
      result["replicating_s"] = half(true);
      result["plain_s"] = half(false);
    }
    const auto stage = static_cast<std::size_t>(mesh.rank(Axis::pipeline));
    result["planned_activation_bytes"] = apps::plan_training(options.on(mesh.shape())).stages[stage].memory.activations;
    result["activation_bytes"] = memory_use(MemoryKind::activations).peak_bytes;
    result["memory_bytes"] = memory_use().peak_bytes;
    for (const auto& [name, values] : pipeline) result[name] = median(values);
    if (!interface.empty()) result["sent_per_step"] = (sent_through(interface) - sent) / static_cast<std::uint64_t>(steps);
    std::printf("%s\n", result.dump().c_str());
  });
}

}  // namespace

int main(int argc, char** argv) {
  return apps::exit_status([&] { return measure(argc, argv); });
}
