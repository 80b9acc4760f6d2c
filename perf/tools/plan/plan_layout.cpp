// stretto-plan layout: finds the divisions of a whole training step over the ranks of a cluster, the cost of each, and the
// fastest.
#include "plan/plan_layout.hpp"

#include <CLI/CLI.hpp>
#include <chrono>
#include <map>

#include "apps/common/parse_flags.hpp"
#include "common/size_text.hpp"
#include "plan/layout_report.hpp"
#include "plan/model_text.hpp"
#include "plan/plan_options.hpp"

namespace plan_tool {
namespace {

// Types by the trainer's names.
const std::map<std::string, DType> layout_types = {
    {"fp64", DType::f64}, {"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}};
const std::map<std::string, Recompute> recompute_names = {
    {"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}};

struct Fixed {  // the values that the command line gives; 0: not given
  int tensor = 0, ulysses = 0, ring = 0, pipeline = 0, data = 0, virtual_stages = 0;
  std::int64_t micro_batch = 0;
  std::string schedule, zero, rows, recompute, sequence_layout = "zigzag", grad_dtype, memory, mask = "dense";
};

template <class T>
std::optional<T> if_given(const T& value) {
  return value == T() ? std::nullopt : std::optional<T>(value);
}

void add_fixed(CLI::App& app, Fixed& fixed, LayoutSpace& space) {
  constexpr int most = 1 << 20;
  app.add_option("--tp", fixed.tensor, "Only layouts of so many tensor-parallel ranks; likewise the following")
      ->check(CLI::Range(1, most));
  app.add_option("--pp", fixed.pipeline, "Pipeline stages")->check(CLI::Range(1, most));
  app.add_option("--dp", fixed.data, "Data-parallel ranks")->check(CLI::Range(1, most));
  app.add_option("--cp", fixed.ring, "Ranks of a ring")->check(CLI::Range(1, most));
  app.add_option("--ulysses", fixed.ulysses, "Ranks that exchange heads")->check(CLI::Range(1, most));
  app.add_option("--micro-batch-size", fixed.micro_batch, "Sequences of a microbatch")->check(CLI::Range(1, most));
  app.add_option("--schedule", fixed.schedule,
                 fmt::format("Pipeline schedule: {}; without a flush {}", schedule_names(), window_names()));
  app.add_option("--virtual-stages", fixed.virtual_stages, "Parts of the model that each stage holds")
      ->check(CLI::Range(1, 4096));
  app.add_option("--zero", fixed.zero, "ZeRO stage")->check(CLI::IsMember({"0", "1", "2", "3"}));
  app.add_option("--delay", space.sharding.delay, "With sums of gradients that arrive so many steps late")
      ->capture_default_str()
      ->check(CLI::IsMember({0, 1}));
  app.add_option("--offload", space.files_directory,
                 "A directory: also layouts with the optimizer's state, gradients and values in files there, which the "
                 "cluster's file_gbs tells the time of");
  app.add_option("--sp", fixed.rows, "With sequence parallelism, or without: yes or no")
      ->check(CLI::IsMember({"yes", "no"}));
  app.add_option("--recompute", fixed.recompute, "What backward computes again: none, selective or full")
      ->check(CLI::IsMember(recompute_names));
  app.add_option("--cp-layout", fixed.sequence_layout, "Which tokens a rank of a ring has: zigzag, contiguous or striped")
      ->capture_default_str();
  app.add_option("--tiles", space.tiles,
                 "Parts of each linear layer that are gathered one after the other: ZeRO stage 3 only")
      ->capture_default_str()
      ->check(CLI::Range(1, most));
  app.add_flag("--sp-keep-gathered", space.keeps_gathered,
               "With sequence parallelism that keeps what layers have gathered in forward");
  app.add_flag("--partition-activations", space.partitions_activations,
               "With full recomputation that divides each block's kept input over the tensor-parallel ranks");
}

}  // namespace

bool parse(int argc, char** argv, LayoutLine& line) {
  CLI::App app(
      "Plans the layout of a whole training step on a cluster: the fastest ways to divide a GPT over its ranks that fit "
      "the\n"
      "memory, their predicted time, and the flags of stretto-train that run them. Nothing is run.",
      "stretto-plan layout");
  app.set_help_flag("-h,--help", "Print this help");
  Fixed fixed;
  LayoutSpace& space = line.space;
  app.add_option("--model", line.model,
                 "gpt:layers=L,hidden=H,heads=A,seq=S,vocab=V; llama: with kv_heads=K,mlp=F; or a config.json")
      ->required();
  app.add_option("--cluster", line.cluster, "The cluster, a JSON file (docs/layout.md)")->required();
  app.add_option("--ranks", space.ranks, "Devices of the job")->required()->check(CLI::Range(1, 1 << 20));
  app.add_option("--global-batch,--global-batch-size", space.global_batch, "Sequences of a step")
      ->required()
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--memory", fixed.memory, "Of a device, such as 80GiB; the cluster's when left out");
  app.add_option("--dtype", line.dtype, "Of values: fp64, fp32, bf16 or fp16")
      ->capture_default_str()
      ->check(CLI::IsMember(layout_types));
  app.add_option("--grad-dtype", fixed.grad_dtype, "Of gradients: fp32 when left out, fp64 with fp64")
      ->check(CLI::IsMember(layout_types));
  app.add_option("--attention", fixed.mask, "The earlier tokens that a token sees, as stretto-train takes them")
      ->capture_default_str();
  add_fixed(app, fixed, space);
  app.add_option("--system", line.system, "How another training program works, a JSON file; Stretto when left out");
  app.add_option("--top", line.top, "Layouts to print")->capture_default_str()->check(CLI::Range(1, 1000));
  app.add_option("--json", line.json, "Write the figures to this file");
  if (!apps::parse_flags(app, argc, argv)) return false;
  space.model = model_from_text(line.model);
  space.sharding.dtype = layout_types.at(line.dtype);
  if (!fixed.grad_dtype.empty()) space.sharding.gradient_dtype = layout_types.at(fixed.grad_dtype);
  if (!fixed.memory.empty()) {
    space.memory_bytes = perf::bytes_from_text("--memory", fixed.memory);
    require(space.memory_bytes > 0, "--memory {} holds nothing; give more, or leave it out for the cluster's.",
            fixed.memory);
  }
  space.mask = attention_mask_from_text(fixed.mask);
  space.sequence_layout = sequence_layout_from_name(fixed.sequence_layout);
  space.tensor = if_given(fixed.tensor);
  space.pipeline = if_given(fixed.pipeline);
  space.data = if_given(fixed.data);
  space.ulysses = if_given(fixed.ulysses);
  space.ring = if_given(fixed.ring);
  space.virtual_stages = if_given(fixed.virtual_stages);
  space.micro_batch = if_given(fixed.micro_batch);
  space.schedule = if_given(fixed.schedule);
  if (!fixed.zero.empty()) space.zero = zero_stages.at(static_cast<std::size_t>(fixed.zero[0] - '0'));
  if (!fixed.rows.empty()) space.divides_rows = fixed.rows == "yes";
  if (!fixed.recompute.empty()) space.recompute = recompute_names.at(fixed.recompute);
  return true;
}

namespace {

// Throws the reason why nothing fits.
[[noreturn]] void refuse(const LayoutLine& line, const LayoutSearch& search) {
  require(search.tried > 0, "{}", refusal_text(line.space, search));
  fail(ErrorCode::invalid_argument,
       "None of {} layouts fits {} of memory; the smallest needs {}: give more ranks, or more --memory.", search.tried,
       perf::in_units(static_cast<double>(line.space.memory_bytes)),
       perf::in_units(static_cast<double>(search.least_memory)));
}

// Reports the progress of a long search on stderr every few seconds.
struct Progress {
  std::chrono::steady_clock::time_point next = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  void operator()(std::int64_t looks, std::int64_t most) {
    if (std::chrono::steady_clock::now() < next) return;
    next = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    fmt::print(stderr, "stretto-plan: {} looks at a layout of at most {}\n", looks, most);
  }
};

}  // namespace

void plan_layout_of(int argc, char** argv) {
  LayoutLine line;
  if (!parse(argc, argv, line)) return;
  if (!line.json.empty()) perf::check_writable("--json", line.json);
  const TrainingCluster cluster = training_cluster_from_file(line.cluster);
  const TrainingSystem system = line.system.empty() ? default_system(cluster) : training_system_from_file(line.system);
  if (line.space.memory_bytes == 0) line.space.memory_bytes = cluster.memory_bytes;
  const auto begin = std::chrono::steady_clock::now();
  const LayoutSearch search = search_layouts(line.space, cluster, line.top, system, Progress());
  const std::chrono::duration<double> searched = std::chrono::steady_clock::now() - begin;
  if (search.best.empty()) refuse(line, search);
  line.assumes_overlaps = line.system.empty() && cluster.gpus;
  print(line, search, searched.count());
  if (!line.json.empty()) perf::write_file("--json", line.json, json_of(line, search));
}

}  // namespace plan_tool
