#include "perf/verbs.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/common/parse_flags.hpp"
#include "common/fail.hpp"
#include "common/output_file.hpp"
#include "perf/from_ranks.hpp"
#include "perf/overlap/overlap_case.hpp"
#include "perf/result.hpp"
#include "stretto/device.hpp"
#include "stretto/overlap/rehearsal.hpp"
#include "stretto/overlap/trace.hpp"

namespace perf {

using stretto::Communicator;
using stretto::Rehearsal;
using stretto::RehearsalScope;
using stretto::Tensor;

namespace {

struct OverlapRun {
  std::string case_name;
  int nproc = 0;
  double ratio = 0;  // 0: links as they are
  std::string links;
  bool no_overlap = false;
  OverlapSizes sizes;
  stretto::OverlapMeasurement measurement;
  std::string json;
  std::string trace;
};

double largest(const Communicator& world, double value) {
  world.all_reduce(&value, &value, 1, stretto::DType::f64, stretto::ReduceOp::max, stretto::Stream::inline_()).wait();
  return value;
}

std::unique_ptr<OverlapCase> settled_case(const Communicator& world, const OverlapRun& options) {
  auto overlap_case = make_overlap_case(options.case_name, world, options.sizes);
  overlap_case->step();  // learns the order of uses
  overlap_case->finish();
  return overlap_case;
}

double bytes_of_step(const Communicator& world, OverlapCase& overlap_case) {
  const std::uint64_t first = world.job().ledger().next_sequence();
  overlap_case.step();
  overlap_case.finish();
  return largest(world, static_cast<double>(world.job().ledger().traffic(first).bytes_sent));
}

std::vector<Tensor> results_of(OverlapCase& overlap_case, Rehearsal rehearsal) {
  overlap_case.reset();
  {
    const RehearsalScope scope(rehearsal);
    overlap_case.step();
    overlap_case.step();
    overlap_case.finish();
  }
  std::vector<Tensor> results = overlap_case.results();
  for (Tensor& tensor : results) tensor = tensor.clone();
  return results;
}

// Compares, from the same initial state, two steps with overlap and two steps that wait for every operation. The control,
// two steps that communicate nothing, must differ.
bool same_bits(OverlapCase& overlap_case, bool alone) {
  const std::vector<Tensor> overlapped = results_of(overlap_case, Rehearsal::full);
  const auto equals = [&](const std::vector<Tensor>& others) {
    for (std::size_t i = 0; i < others.size(); ++i) {
      if (std::memcmp(others[i].raw(), overlapped[i].raw(), others[i].bytes()) != 0) return false;
    }
    return true;
  };
  return equals(results_of(overlap_case, Rehearsal::serial)) &&
         (alone || !equals(results_of(overlap_case, Rehearsal::computation)));
}

// Traces three steps, with overlap.
void trace_steps(const Communicator& world, OverlapCase& overlap_case, const std::string& path) {
  stretto::Trace trace(world);
  for (int number = 1; number <= 3; ++number) {
    const stretto::Trace::Span step = trace.step(number);
    overlap_case.step();
  }
  overlap_case.finish();
  trace.write(path);
}

nlohmann::ordered_json run_case(const Communicator& world, const OverlapRun& options) {
  const auto overlap_case = settled_case(world, options);
  const double bytes = bytes_of_step(world, *overlap_case);
  const double differs = largest(world, same_bits(*overlap_case, world.size() == 1) ? 0 : 1);
  const stretto::OverlapTimes times = stretto::measure_overlap(
      world, [&] { overlap_case->step(); }, options.measurement);
  overlap_case->finish();
  if (!options.trace.empty()) trace_steps(world, *overlap_case, options.trace);
  const char* const links = std::getenv("STRETTO_LINKS");
  nlohmann::ordered_json result{{"case", options.case_name},
                                {"ranks", world.size()},
                                {"processor", stretto::processor_name()},
                                {"overlap", !options.no_overlap},
                                {"links", links == nullptr ? "" : links},
                                {"layers", options.sizes.layers},
                                {"hidden", options.sizes.hidden},
                                {"rows", options.sizes.rows},
                                {"dtype", name(options.sizes.dtype)},
                                {"rounds", options.measurement.rounds},
                                {"bytes_sent", bytes},
                                {"same_bits", differs == 0}};
  for (const auto& [name, value] : times.figures()) result[name] = value;
  return result;
}

void model_links(const std::string& links) {
  setenv("STRETTO_RANKS_PER_NODE", "1", 1);  // each rank is a node
  setenv("STRETTO_LINKS", links.c_str(), 1);
}

// Models links on which communication takes ratio times as long as computation. Its time is measured on links of a guessed
// rate first, since the operations themselves may depend on the links.
bool model_links_by_ratio(const OverlapRun& options) {
  const auto measured = [&](Rehearsal rehearsal) {
    return from_ranks(options.nproc, [&](const Communicator& world) -> nlohmann::ordered_json {
      const auto overlap_case = settled_case(world, options);
      const double bytes = bytes_of_step(world, *overlap_case);
      return {{"bytes", bytes}, {"seconds", seconds_per_step(world, *overlap_case, rehearsal)}};
    });
  };
  const auto model = [&](double bytes_per_second) {
    model_links(fmt::format("inter={:.3f}MB/s,20us", bytes_per_second * 1e-6));
  };
  unsetenv("STRETTO_LINKS");
  const auto alone = measured(Rehearsal::computation);
  if (!alone) return false;
  const double wanted = options.ratio * alone->at("seconds").get<double>();
  const double guess = alone->at("bytes").get<double>() / wanted;
  model(guess);
  const auto on_links = measured(Rehearsal::communication);
  if (!on_links) return false;
  model(guess * on_links->at("seconds").get<double>() / wanted);
  return true;
}

void print(const nlohmann::ordered_json& result) {
  const auto number = [&](const char* key) { return result.at(key).get<double>(); };
  std::printf("# %s: %d layers of width %d, %d rows a rank, %s; %d ranks; links %s; %s\n",
              result["case"].get<std::string>().c_str(), result["layers"].get<int>(), result["hidden"].get<int>(),
              result["rows"].get<int>(), result["dtype"].get<std::string>().c_str(), result["ranks"].get<int>(),
              result["links"].get<std::string>().empty() ? "as they are" : result["links"].get<std::string>().c_str(),
              result["processor"].get<std::string>().c_str());
  std::printf("%10s %10s %10s %10s %10s %10s %10s  %s\n", "full", "compute", "comm", "serial", "exposed", "efficiency",
              "of bound", "bits");
  std::printf("%7.2f ms %7.2f ms %7.2f ms %7.2f ms %7.2f ms %10.3f %10.3f  %s\n", number("t_full_ms"),
              number("t_compute_ms"), number("t_comm_ms"), number("t_serial_ms"), number("exposed_ms"), number("efficiency"),
              number("t_full_ms") / std::max(number("t_compute_ms"), number("t_comm_ms")),
              result["same_bits"].get<bool>() ? "equal" : "DIFFERENT");
}

std::optional<OverlapRun> parse(int argc, char** argv) {
  OverlapRun options;
  CLI::App app(
      "Runs a training step full, computation only, communication only and serial, and prints how much communication is "
      "hidden");
  app.name("stretto-perf overlap");
  app.add_option("--case", options.case_name, "What overlaps")->required()->check(CLI::IsMember(overlap_cases()));
  app.add_option("--nproc", options.nproc, "Ranks to start; 0: a launcher has started this one")->capture_default_str();
  app.add_option("--ratio", options.ratio,
                 "Model links on which communication takes that many times as long as computation; 0: links as they are")
      ->capture_default_str();
  app.add_option("--links", options.links, "Model these links instead, as STRETTO_LINKS");
  app.add_flag("--no-overlap", options.no_overlap, "The control: the same step without overlap");
  const auto* const layers =
      app.add_option("--layers", options.sizes.layers, "Number of layers; default of ring_pass 1")->capture_default_str();
  const auto* const hidden =
      app.add_option("--hidden", options.sizes.hidden, "Width of a layer; default of ring_pass 64")->capture_default_str();
  const auto* const rows =
      app.add_option("--rows", options.sizes.rows, "Tokens of a rank; default of ring_pass 8192")->capture_default_str();
  app.add_option_function<std::string>(
         "--dtype",
         [&](const std::string& name) {
           options.sizes.dtype = name == "fp64"   ? stretto::DType::f64
                                 : name == "fp32" ? stretto::DType::f32
                                                  : stretto::DType::bf16;
         },
         "Type of the computation")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16"}));
  app.add_option("--rounds", options.measurement.rounds, "Rounds of the four rehearsals, in turn; figures are medians")
      ->capture_default_str();
  app.add_option("--steps", options.measurement.steps, "Steps that are timed together")->capture_default_str();
  app.add_option("--warmup", options.measurement.warmup, "Steps before them")->capture_default_str();
  app.add_option("--trace", options.trace, "Write what every rank did in three more steps to this file, for Perfetto");
  app.add_option("--json", options.json, "Write the figures to this file");
  if (!apps::parse_flags(app, argc, argv)) return std::nullopt;
  if (options.case_name == "ring_pass") {  // one head of a long sequence: products grow with the square of the rows
    if (layers->count() == 0) options.sizes.layers = 1;
    if (hidden->count() == 0) options.sizes.hidden = 64;
    if (rows->count() == 0) options.sizes.rows = 8192;
  }
  options.sizes.overlap = !options.no_overlap;
  require(options.nproc >= 0, "--nproc {} must be at least 1.", options.nproc);
  require(options.ratio >= 0, "--ratio {} must be above 0, or 0 for links as they are.", options.ratio);
  require(options.ratio == 0 || options.links.empty(), "--ratio {} and --links {} both say how fast links are; give one.",
          options.ratio, options.links);
  require((options.ratio == 0 && options.links.empty()) || options.nproc > 0,
          "--ratio and --links model links between ranks that this command starts; give --nproc N as well.");
  require(options.sizes.layers >= 1 && options.sizes.hidden >= 1 && options.sizes.rows >= 1,
          "--layers {}, --hidden {} and --rows {} must be at least 1.", options.sizes.layers, options.sizes.hidden,
          options.sizes.rows);
  return options;
}

}  // namespace

int measure_overlap_case(int argc, char** argv) {
  const std::optional<OverlapRun> options = parse(argc, argv);
  if (!options) return 0;
  if (!options->json.empty()) check_writable("--json", options->json);
  if (!options->trace.empty()) stretto::Trace::check_writable(options->trace);
  if (options->ratio > 0 && !model_links_by_ratio(*options)) return 1;
  if (!options->links.empty()) setenv("STRETTO_LINKS", options->links.c_str(), 1);
  const auto result = from_ranks(options->nproc, [&](const Communicator& world) { return run_case(world, *options); });
  if (!result) return 1;
  if (result->is_null()) return 0;  // rank 0 prints the result
  print(*result);
  if (!options->json.empty()) write_file("--json", options->json, result->dump(1) + "\n");
  return result->at("same_bits").get<bool>() ? 0 : 1;
}

}  // namespace perf
