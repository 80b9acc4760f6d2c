#include "perf/options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <numeric>

#include "apps/common/parse_flags.hpp"
#include "common/fail.hpp"
#include "common/output_file.hpp"
#include "common/size_text.hpp"
#include "perf/operation.hpp"
#include "perf/peers/peer.hpp"

namespace perf {

using stretto::DType;
using stretto::ReduceOp;

namespace {

constexpr ReduceOp all_ops[] = {ReduceOp::sum, ReduceOp::prod, ReduceOp::min,
                                ReduceOp::max, ReduceOp::avg,  ReduceOp::premul_sum};

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  std::size_t from = 0;
  for (std::size_t comma = list.find(','); comma != std::string::npos; comma = list.find(',', from)) {
    words.push_back(list.substr(from, comma - from));
    from = comma + 1;
  }
  words.push_back(list.substr(from));
  return words;
}

ReduceOp op_from_name(const std::string& name) {
  std::vector<const char*> names;
  for (const ReduceOp op : all_ops) {
    if (name == name_of(op)) return op;
    names.push_back(name_of(op));
  }
  fail(stretto::ErrorCode::invalid_argument, "-o '{}' is no operator; choose all or one of {}.", name,
       fmt::join(names, ", "));
}

// Options that need more than CLI11's own conversion, as text.
struct Texts {
  std::string test, min = "32M", max = "32M", step, dtype = "f32", op = "sum", root = "0", algorithm = "auto",
                    in_place = "both", memory, device = "cpu", peers, quantize, quantize_result, rounding = "nearest";
  int over = 1;
};

void read_quantization(const Texts& texts, Options& options) {
  using stretto::Rounding;
  stretto::Quantization& quantization = options.quantization;
  if (!texts.quantize.empty()) quantization.format = stretto::quantized_format_from_name(texts.quantize);
  if (!texts.quantize_result.empty()) quantization.result = stretto::quantized_format_from_name(texts.quantize_result);
  require(texts.rounding == "nearest" || texts.rounding == "stochastic",
          "--rounding '{}' is not among nearest and stochastic.", texts.rounding);
  quantization.rounding = texts.rounding == "stochastic" ? Rounding::stochastic : Rounding::nearest_even;
  quantization.seed = options.seed;
  require(
      options.is_quantized() || (texts.quantize_result.empty() && quantization.rounding == Rounding::nearest_even),
      "--quantize-result and --rounding apply to quantized collectives; give --quantize int8, int4, fp8 or 1bit as well.");
}

void read(const Texts& texts, Options& options) {
  options.every_test = texts.test == "all";
  for (const Test& test : all_tests()) {
    if (options.every_test) options.tests.push_back(&test);
  }
  if (!options.every_test) options.tests.push_back(&test_from_name(texts.test));
  options.min_bytes = bytes_from_text("-b", texts.min);
  options.max_bytes = bytes_from_text("-e", texts.max);
  if (!texts.step.empty()) {
    options.step_bytes = bytes_from_text("-i", texts.step);
    require(options.step_bytes > 0, "-i {} is too small a step; give at least 1 byte.", texts.step);
  }
  if (texts.dtype == "all") {
    options.dtypes.clear();
    for (int i = 0; i <= static_cast<int>(DType::f8e5m2); ++i) options.dtypes.push_back(static_cast<DType>(i));
  } else {
    options.dtypes = {stretto::dtype_from_name(texts.dtype.c_str())};
  }
  if (texts.op == "all") {
    options.ops.assign(std::begin(all_ops), std::end(all_ops));
  } else {
    options.ops = {op_from_name(texts.op)};
  }
  options.every_root = texts.root == "all";
  if (!options.every_root) {
    require(!texts.root.empty() && texts.root.size() < 7 && texts.root.find_first_not_of("0123456789") == std::string::npos,
            "-r '{}' is no rank; give its number, or all.", texts.root);
    options.root = std::stoi(texts.root);
  }
  require(texts.over >= 0 && texts.over <= 3, "-a {} is not among 0 (rank 0), 1 (average), 2 (least) and 3 (most).",
          texts.over);
  options.over = static_cast<Over>(texts.over);
  options.every_algorithm = texts.algorithm == "all";
  if (!options.every_algorithm) {
    options.methods.clear();
    for (const std::string& word : words_of(texts.algorithm)) options.methods.push_back(stretto::method_from_text(word));
  }
  require(texts.in_place == "0" || texts.in_place == "1" || texts.in_place == "both",
          "--in-place '{}' is not among 0, 1 and both.", texts.in_place);
  options.out_of_place = texts.in_place != "1";
  options.in_place = texts.in_place != "0";
  options.device = stretto::device_from_name(texts.device);
  const bool on_gpu = options.device == stretto::Device::cuda;
  require(texts.memory.empty() || texts.memory == "symmetric" || texts.memory == "malloc",
          "--memory '{}' is not among symmetric and malloc.", texts.memory);
  require(texts.memory.empty() || !on_gpu,
          "--memory {} is host memory, but with --device cuda buffers lie in the GPU's memory; leave --memory out.",
          texts.memory);
  options.memory = on_gpu ? Memory::gpu : texts.memory == "malloc" ? Memory::ordinary : Memory::symmetric;
  if (!texts.peers.empty()) options.peers = words_of(texts.peers);
  read_quantization(texts, options);
}

// Refuses combinations that a named collective, type or operator cannot do. Those of "all" are left out later instead.
void check_quantized(const Options& options) {
  const stretto::Quantization& quantization = options.quantization;
  const auto wanted = fmt::format("--quantize {}", name(quantization.format));
  require(options.every_test || can_be_quantized(options.tests.front()->collective),
          "{}: {} cannot be quantized; all_gather, reduce_scatter and all_reduce can, and the first two with uneven shares.",
          wanted, options.tests.front()->name);
  require(quantization.result == stretto::QuantizedFormat::none || options.every_test ||
              options.tests.front()->collective == stretto::Collective::all_reduce,
          "--quantize-result {}: {} quantizes no result; only all_reduce does.", name(quantization.result),
          options.tests.front()->name);
  for (const DType dtype : options.dtypes) {
    require(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
            "{}: {} cannot be quantized; give -d f32, bf16 or f16.", wanted, name(dtype));
  }
  for (const ReduceOp op : options.ops) {
    require(op == ReduceOp::sum || op == ReduceOp::avg || op == ReduceOp::premul_sum,
            "{}: {} cannot be quantized; give -o sum, avg or mulsum.", wanted, name_of(op));
  }
}

void check(const Options& options) {
  require(options.min_bytes <= options.max_bytes, "-b {} is above -e {}; the first size cannot be above the last.",
          options.min_bytes, options.max_bytes);
  require(options.step_bytes > 0 || options.step_factor > 1,
          "-f {} does not grow sizes; give a factor above 1, or -i BYTES.", options.step_factor);
  require(options.min_bytes > 0 || options.step_bytes > 0 || options.max_bytes == 0,
          "-b 0 cannot be multiplied; begin with 1 byte or more, or step by -i BYTES.");
  require(options.iterations >= 1 && options.cycles >= 1 && options.warmup >= 0,
          "-n {} and -N {} must be at least 1, and -w {} cannot be negative.", options.iterations, options.cycles,
          options.warmup);
  require(options.seconds >= 0 && options.seconds <= 3600, "--seconds {} is no time for a loop; give up to 3600.",
          options.seconds);
  constexpr int most_copies = 4096;
  require(options.copies >= 0 && options.copies <= most_copies,
          "--copies {} is no number of buffers; give 1 to {}, or 0 to let the program choose.", options.copies, most_copies);
  require(options.nproc >= 0, "--nproc {} cannot be negative.", options.nproc);
  require(!options.threads || options.nproc > 0, "--threads needs --nproc N, the number of ranks.");
  if (options.is_quantized()) check_quantized(options);
  require(options.servers >= 0, "--servers {} cannot be negative.", options.servers);
  if (options.servers > 0) {
    require(!options.every_test && options.tests.front()->collective == stretto::Collective::all_reduce,
            "--servers {}: only all_reduce has ranks without a vector; name it, or leave the servers out.", options.servers);
    require(!options.is_quantized() && options.peers.empty(),
            "--servers {}: sums are not quantized, and other libraries have no such ranks; leave out --quantize and --vs.",
            options.servers);
  }
  for (const std::string& peer : options.peers) {
    check_peer(peer, options.device);
    require(!options.threads || peer != "mpi", "--vs mpi needs ranks that are processes; leave --threads out.");
  }
  if (!options.json.empty()) check_writable("--json", options.json);
  if (options.nproc > 0) options.check_for(options.nproc);
}

void check_nodes(const std::string& ranks_per_node, int ranks) {
  if (ranks_per_node.empty()) return;
  std::vector<int> sizes;
  for (const std::string& word : words_of(ranks_per_node)) {
    require(
        !word.empty() && word.size() < 7 && word.find_first_not_of("0123456789") == std::string::npos && std::stoi(word) > 0,
        "--ranks-per-node '{}': '{}' is no number of ranks; give one like 4, or each node's like 3,1.", ranks_per_node,
        word);
    sizes.push_back(std::stoi(word));
  }
  const int sum = std::accumulate(sizes.begin(), sizes.end(), 0);
  require(sizes.size() == 1 ? ranks % sum == 0 : ranks == sum,
          "{} ranks do not divide into nodes of --ranks-per-node {}; choose a divisor, or name every node's like 3,1.",
          ranks, ranks_per_node);
}

}  // namespace

const char* name_of(Memory memory) {
  switch (memory) {
    case Memory::symmetric: return "symmetric";
    case Memory::ordinary: return "malloc";
    case Memory::gpu: return "gpu";
  }
  return "unknown";
}
const char* name_of(ReduceOp op) { return op == ReduceOp::premul_sum ? "mulsum" : name(op); }

std::optional<Options> parse_command_line(int argc, char** argv) {
  Options options;
  Texts texts;
  CLI::App app("Times Stretto's collectives and checks every element of their results.", "stretto-perf");
  app.set_help_flag("-h,--help", "Print this help");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // later flags override those of a script

  std::vector<const char*> names;
  for (const Test& test : all_tests()) names.push_back(test.name);
  app.add_option("COLLECTIVE", texts.test, fmt::format("all, or one of {}", fmt::join(names, ", ")))->required();
  app.add_option("-b,--minbytes", texts.min, "First size; suffix K, M or G")->capture_default_str();
  app.add_option("-e,--maxbytes", texts.max, "Last size")->capture_default_str();
  CLI::Option* const factor =
      app.add_option("-f,--stepfactor", options.step_factor, "Each size is that many times the one before")
          ->capture_default_str();
  app.add_option("-i,--stepbytes", texts.step, "Each size is that many bytes more than the one before")->excludes(factor);
  CLI::Option* const iterations =
      app.add_option("-n,--iters", options.iterations,
                     "Timed iterations; left out, 20, or as many as last a millisecond if those are more");
  app.add_option("--seconds", options.seconds, "Instead of -n: time the number of iterations that lasts about that long");
  app.add_option("-w,--warmup_iters", options.warmup, "Iterations before them")->capture_default_str();
  app.add_option("-N,--run_cycles", options.cycles, "Loops, in turn for all methods and peers; figures are medians")
      ->capture_default_str();
  app.add_option("-d,--datatype", texts.dtype, "Element type, or all")->capture_default_str();
  app.add_option("-o,--op", texts.op, "sum, prod, min, max, avg, mulsum or all")->capture_default_str();
  app.add_option("-r,--root", texts.root, "Rank, or all")->capture_default_str();
  app.add_option("-c,--check", options.check, "1: check every element on every rank; 0: do not")->capture_default_str();
  app.add_option("-a,--average", texts.over, "Times are rank 0's (0), the ranks' average (1), least (2) or most (3)")
      ->capture_default_str();
  app.add_option("--algo", texts.algorithm, "auto, methods like ring or ring*2,chain/16, or all")->capture_default_str();
  app.add_option("--in-place", texts.in_place, "0: out of place only, 1: in place only, both")->capture_default_str();
  app.add_option("--memory", texts.memory, "Memory of the buffers: symmetric (stretto::allocate) or malloc")
      ->default_str("symmetric");
  app.add_option("--device", texts.device, "cpu, or cuda: each rank's buffers lie on a GPU, and times are the GPU's")
      ->capture_default_str();
  app.add_option("--copies", options.copies, "Copies of the buffers, which take turns; 0: several if they are small")
      ->capture_default_str();
  app.add_flag("--prepared", options.prepared, "Time operations that were prepared once (Communicator::prepare)");
  app.add_option("--nproc", options.nproc, "Ranks to start on this host (leave it out under mpirun, srun or torchrun)");
  app.add_flag("--threads", options.threads, "The ranks are threads of one process");
  app.add_option("--ranks-per-node", options.ranks_per_node,
                 "Treat every N ranks as a node, or with a list like 3,1 that many ranks as each node");
  app.add_flag("--deterministic", options.deterministic, "Set STRETTO_DETERMINISTIC=1 for the run");
  app.add_option("--servers", options.servers,
                 "all_reduce: the last N ranks have no vector, and may add up shares of the others'");
  app.add_option("--quantize", texts.quantize, "Send elements as int8, int4, fp8 or 1bit");
  app.add_option("--quantize-result", texts.quantize_result,
                 "all_reduce: the format in which sums are sent to all; default as --quantize");
  app.add_option("--rounding", texts.rounding, "For --quantize int8 and int4: nearest or stochastic")->capture_default_str();
  app.add_option("--vs", texts.peers, "Other libraries to time in turn: mpi, gloo or mpi,gloo; with --device cuda: nccl");
  app.add_option("--json", options.json, "File for the figures");
  app.add_option("--seed", options.seed, "Seed of the inputs")->capture_default_str();

  if (!apps::parse_flags(app, argc, argv)) return std::nullopt;
  if (iterations->count() > 0) options.least_seconds = 0;
  options.command = fmt::format("stretto-perf {}", fmt::join(argv + 1, argv + argc, " "));
  read(texts, options);
  check(options);
  return options;
}

std::vector<std::int64_t> Options::sizes() const {
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = min_bytes; size <= max_bytes;) {
    sizes.push_back(size);
    const auto multiplied = static_cast<std::int64_t>(
        std::min(std::floor(static_cast<double>(size) * step_factor), static_cast<double>(max_bytes) + 1));
    size = step_bytes > 0 ? size + step_bytes : std::max(size + 1, multiplied);
  }
  return sizes;
}

bool Options::has_peer(const std::string& name) const { return std::find(peers.begin(), peers.end(), name) != peers.end(); }

void Options::check_for(int ranks) const {
  require(every_root || root < ranks, "-r {} is no rank among {}; choose 0..{}, or all.", root, ranks, ranks - 1);
  require(every_test || !is_ring_exchange(*tests.front()) || ranks >= 2, "sendrecv needs 2 ranks or more; this job has {}.",
          ranks);
  require(every_test || !prepared || can_be_prepared(*tests.front()), "--prepared: {} cannot be prepared; leave it out.",
          tests.front()->name);
  check_nodes(ranks_per_node, ranks);
  require(servers < ranks, "--servers {} leaves none of {} ranks a vector; give fewer.", servers, ranks);
}

}  // namespace perf
