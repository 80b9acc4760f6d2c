#include "plan/plan_options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>

#include "apps/common/parse_flags.hpp"
#include "common/size_text.hpp"

namespace plan_tool {
namespace {

int number_from(const char* flag, const std::string& text) {
  const bool digits = !text.empty() && text.size() < 8 && text.find_first_not_of("0123456789") == std::string::npos;
  require(digits && std::stoi(text) >= 1, "{} '{}' is no number of ranks; give one like 8, or a range like 1..64.", flag,
          text);
  return std::stoi(text);
}

Collective collective_of(const std::string& text) {
  const Collective collective = collective_from_name(text);
  require(collective != Collective::send && collective != Collective::recv,
          "{} is a message between two ranks, which has no plan to choose; name a collective.", text);
  return collective;
}

// --ranks-per-node: 8, or 3,1,2.
void put_on_nodes(const std::string& text, PlanRequest& request) {
  std::vector<int> sizes;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    sizes.push_back(number_from("--ranks-per-node", text.substr(begin, comma - begin)));
    begin = comma + 1;
  }
  if (sizes.size() > 1) {
    const int sum = std::accumulate(sizes.begin(), sizes.end(), 0);
    require(sum == request.size,
            "--ranks-per-node {} has nodes for {} ranks, not {}; give numbers that add up to the ranks.", text, sum,
            request.size);
    request.node_sizes = sizes;
    return;
  }
  request.ranks_per_node = sizes.front();
  require(request.size % request.ranks_per_node == 0,
          "{} ranks do not lie on nodes of --ranks-per-node {}; choose a divisor, or name every node's like 3,1,2.",
          request.size, text);
}

constexpr std::pair<const char*, const char*> subcommands[] = {
    {"step", "plans the communication of a whole training step"},
    {"pipeline", "shows, proves and draws schedules of pipeline stages"},
    {"attention", "plans how long sequences are divided"},
    {"layout", "finds the layout of a whole training job"},
    {"move", "plans how a divided tensor comes to other ranks"}};

// The first word on the command line of a collective may be the name of a subcommand that is misspelt.
void check_first_word(const std::string& word) {
  bool is_known = word.empty() || word == "all" || word.starts_with('-');
  std::string collectives, others;
  for (int i = 0; i <= static_cast<int>(Collective::recv); ++i) {
    const char* const collective = name(static_cast<Collective>(i));
    is_known = is_known || word == collective;
    if (i < static_cast<int>(Collective::send)) collectives += fmt::format("{}, ", collective);
  }
  for (const auto& [subcommand, does] : subcommands) others += fmt::format(", {}", subcommand);
  require(is_known, "'{}' is no collective and no subcommand; give {}all{}.", word, collectives, others);
}

}  // namespace

bool can_do(const PlanRequest& request) {
  try {
    make_plan(request);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    return false;
  }
}

bool parse(int argc, char** argv, CommandLine& line) {
  CLI::App app(
      "Shows the steps of the ranks in a collective, proves that they are right, predicts their time, and draws them.\n"
      "Without --verify and --simulate it prints the plans.",
      "stretto-plan");
  std::string footer = "Subcommands, each with a --help of its own:";
  for (const auto& [subcommand, does] : subcommands) footer += fmt::format("\n  stretto-plan {:<11}{}", subcommand, does);
  app.footer(footer);
  app.set_help_flag("-h,--help", "Print this help");
  app.add_option("COLLECTIVE", line.collective, "all_reduce, broadcast, ...; with --verify also all")->required();
  app.add_option("--algo", line.algorithm, "ring, ring*4, chain/16, two_level(ring+ring)*2/8, ..., or all")
      ->capture_default_str();
  app.add_option("--ranks", line.ranks, "N, or with --verify A..B")->required();
  auto* nodes =
      app.add_option("--ranks-per-node", line.ranks_per_node, "For levels: ranks of a node, or of each node like 3,1,2");
  auto* pods = app.add_option("--nodes-per-pod", line.nodes_per_pod, "For three_level")->needs(nodes);
  auto* bytes =
      app.add_option("--bytes", line.bytes,
                     "Of the whole vector, or of all ranks' shares together; shares, and with --simulate vectors of at "
                     "least an element a rank, are cut to a multiple of the ranks; suffix K, M or G")
          ->capture_default_str();
  auto* dtype = app.add_option("--dtype", line.dtype, "Type of the elements")->capture_default_str();
  auto* root = app.add_option("--root", line.root, "Root of broadcast, reduce, gather and scatter")->capture_default_str();
  auto* servers = app.add_option("--servers", line.servers,
                                 "all_reduce: so many ranks more, which have no vector and may add up shares of the others'")
                      ->check(CLI::NonNegativeNumber);
  auto* rank = app.add_option("--rank", line.rank, "Print this rank's plan only");
  auto* quantize = app.add_option("--quantize", line.quantize, "Quantize it: int8, int4, fp8 or onebit");
  app.add_option("--quantize-result", line.quantize_result,
                 "all_reduce: the format in which the sum is sent to all; default the same")
      ->needs(quantize);
  auto* verify = app.add_flag("--verify", line.verify, "Prove every root, even and uneven counts, in and out of place");
  auto* simulate = app.add_option("--simulate", line.links, "Predict times on the links of this JSON file");
  auto* explain = app.add_flag("--explain", line.explain, "Print the method that the library would choose, and the reason");
  auto* crowd = app.add_option("--ranks-per-core", line.ranks_per_core,
                               "With --explain: ranks per core; default as if all ranks were on this machine");
  crowd->needs(explain)->check(CLI::PositiveNumber);
  explain->excludes(rank)->excludes(simulate);
  app.add_flag("--only-if-faster", line.only_if_faster, "With --explain and --quantize: plain methods compete")
      ->needs(explain)
      ->needs(quantize);
  auto* svg = app.add_option("--svg", line.svg, "Draw the plan into this file, over rounds, or over time with --simulate");
  for (auto* other : {nodes, pods, bytes, dtype, root, rank, servers, simulate, svg, explain}) verify->excludes(other);
  rank->excludes(simulate)->excludes(svg);
  explain->excludes(svg);
  check_first_word(argc > 1 ? argv[1] : "");
  if (!apps::parse_flags(app, argc, argv)) return false;
  const std::size_t dots = line.ranks.find("..");
  line.first_size = number_from("--ranks", line.ranks.substr(0, dots));
  line.last_size = dots == std::string::npos ? line.first_size : number_from("--ranks", line.ranks.substr(dots + 2));
  require(line.first_size <= line.last_size, "--ranks {} is no range; its end is below its beginning.", line.ranks);
  constexpr int most_ranks = 16384;
  require(line.last_size <= most_ranks, "--ranks {} is more than the {} whose plans this program can look at; give fewer.",
          line.ranks, most_ranks);
  require(line.verify || dots == std::string::npos, "--ranks {} is a range, which only --verify takes; give one number.",
          line.ranks);
  if (format_of(line) != QuantizedFormat::none) {
    require(line.collective == "all" || can_be_quantized(collective_of(line.collective)),
            "{} cannot be quantized; all_gather, reduce_scatter and all_reduce can.", line.collective);
    const DType element = dtype_from_name(line.dtype.c_str());
    require(element == DType::f32 || element == DType::bf16 || element == DType::f16,
            "{} cannot be quantized; give --dtype f32, bf16 or f16.", line.dtype);
  }
  require(line.quantize_result.empty() || line.collective == "all" || line.collective == name(Collective::all_reduce),
          "{} has no result to quantize separately; leave --quantize-result {} out.", line.collective, line.quantize_result);
  require(line.verify || line.collective != "all", "Only --verify takes all collectives at once; name one.");
  return true;
}

QuantizedFormat format_of(const CommandLine& line) { return quantized_format_from_name(line.quantize); }
QuantizedFormat result_format_of(const CommandLine& line) {
  return line.quantize_result.empty() ? format_of(line) : quantized_format_from_name(line.quantize_result);
}

bool can_do(const CommandLine& line, Collective collective, Algorithm algorithm) {
  if (format_of(line) != QuantizedFormat::none) return quantizes(collective, algorithm);
  return stretto::can_do(collective, algorithm);
}

std::string quantized_text(const PlanRequest& request) {
  if (request.quantized == QuantizedFormat::none) return "";
  const bool sums = request.quantized_result != QuantizedFormat::none && request.quantized_result != request.quantized;
  return fmt::format(", in {}{}", name(request.quantized),
                     sums ? fmt::format(" and the sum in {}", name(request.quantized_result)) : "");
}

std::vector<Collective> collectives_of(const CommandLine& line) {
  if (line.collective != "all") return {collective_of(line.collective)};
  std::vector<Collective> all;
  all.reserve(static_cast<std::size_t>(Collective::send));
  for (int i = 0; i < static_cast<int>(Collective::send); ++i) all.push_back(static_cast<Collective>(i));
  return all;
}

Method named_method(const CommandLine& line) {
  const Method method = method_from_text(line.algorithm);
  require(method.algorithm != Algorithm::automatic,
          "--algo auto is the library's choice on a machine; name an algorithm, or all.");
  return method;
}

Call call_of(const CommandLine& line) {
  Call call;
  call.dtype = dtype_from_name(line.dtype.c_str());
  PlanRequest& request = call.request;
  request.collective = collective_of(line.collective);
  request.size = line.first_size;
  request.quantized = format_of(line);
  if (request.collective == Collective::all_reduce) request.quantized_result = result_format_of(line);
  request.root = line.root;
  if (!line.ranks_per_node.empty()) put_on_nodes(line.ranks_per_node, request);
  request.nodes_per_pod = line.nodes_per_pod;
  require(line.root == 0 || has_root(request.collective), "{} has no root; leave --root {} out.", line.collective,
          line.root);
  request.servers = line.servers;
  require(line.servers == 0 || (request.collective == Collective::all_reduce && !call.is_quantized()),
          "--servers {}: only an all_reduce that is not quantized has ranks without a vector; leave them out.",
          line.servers);
  require(line.rank >= -1 && line.rank < ranks_of(request), "--rank {} is outside a group of {}.", line.rank,
          ranks_of(request));
  const std::int64_t bytes = perf::bytes_from_text("--bytes", line.bytes);
  request.count = bytes / call.width() / (counts_shares(request.collective) ? request.size : 1);
  // If shares differ, the plans of all ranks differ and must be simulated one by one.
  const bool cut = !line.links.empty() && !counts_shares(request.collective) && request.count > request.size;
  if (cut) request.count -= request.count % request.size;
  if (request.collective == Collective::barrier) request.count = 1;
  require(request.count > 0, "--bytes {} is less than one element of {} for each share; give more.", line.bytes, line.dtype);
  return call;
}

std::vector<Method> methods_of(const CommandLine& line, const PlanRequest& request) {
  if (line.algorithm != "all") return {named_method(line)};
  std::vector<Method> methods;
  const auto& known = algorithms_for(request.collective);
  PlanRequest trial = request;
  const bool quantized = request.quantized != QuantizedFormat::none;
  for (const Algorithm algorithm : known) {
    if (quantized) {
      if (!quantizes(request.collective, algorithm) || (needs_nodes(algorithm) && line.ranks_per_node.empty())) continue;
      for (const int pieces : {1, 16}) {
        methods.push_back(algorithm);
        methods.back().pieces = pieces;
      }
      continue;
    }
    if (needs_nodes(algorithm) || (uses_servers(algorithm) && request.servers == 0)) continue;
    if (shares_memory(algorithm) && request.servers > 0) continue;
    methods.push_back(algorithm);
    if (takes_pieces(algorithm)) {
      methods.push_back(algorithm);
      methods.back().pieces = 16;
    }
  }
  const bool has_levels = std::find(known.begin(), known.end(), Algorithm::two_level) != known.end();
  if (quantized || !has_levels || line.ranks_per_node.empty()) return methods;
  const auto add = [&](const Method& method) {
    trial.method = method;
    if (!can_do(trial)) return;
    methods.push_back(method);
    if (request.size > 64) return;
    methods.push_back(method);
    methods.back().lanes = 2;
    methods.back().pieces = 16;
  };
  for (int i = 1; i < static_cast<int>(Algorithm::two_level); ++i) {
    for (const Algorithm between : known) {
      Method method(Algorithm::two_level);
      method.inside = static_cast<Algorithm>(i);
      method.between = between;
      add(method);
      method.algorithm = Algorithm::three_level;
      method.above = between;
      method.between = method.inside;
      if (line.nodes_per_pod > 0) add(method);
    }
  }
  return methods;
}

}  // namespace plan_tool
