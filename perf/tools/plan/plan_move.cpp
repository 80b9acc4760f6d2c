#include "plan/plan_move.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

#include "apps/common/parse_flags.hpp"
#include "common/size_text.hpp"
#include "plan/plan_options.hpp"

namespace plan_tool {
namespace {

constexpr int most_ranks = 4096;
constexpr std::size_t most_lines = 40;  // of blocks

std::int64_t number(const char* flag, std::string_view text, const std::string& whole, std::int64_t most) {
  std::int64_t result = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result);
  require(error == std::errc() && end == text.data() + text.size() && 0 <= result && result < most,
          "{} '{}' has '{}' where a number below {} belongs.", flag, whole, text, most);
  return result;
}

std::vector<std::string_view> split(std::string_view text, char mark) {
  std::vector<std::string_view> result;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(mark, begin), text.size());
    result.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

// The seconds in which links of that rate allow the move: no node sends or receives more than its link carries.
double least_seconds(const MovePlan& plan, const std::vector<int>& nodes, double bytes_per_second) {
  const auto count = static_cast<std::size_t>(nodes.empty() ? 0 : nodes.back() + 1);
  std::vector<double> out(count), in(count);
  for (const auto& phase : plan.phases) {
    for (const MoveBlock& block : phase) {
      const auto source = static_cast<std::size_t>(nodes[static_cast<std::size_t>(block.source)]);
      const auto target = static_cast<std::size_t>(nodes[static_cast<std::size_t>(block.target)]);
      if (source == target) continue;
      const auto bytes = static_cast<double>(plan.bytes(block));
      out[source] += bytes, in[target] += bytes;
    }
  }
  double most = 0;
  for (std::size_t n = 0; n < count; ++n) most = std::max({most, out[n], in[n]});
  return most / bytes_per_second;
}

}  // namespace

Division division_from_text(const char* flag, const std::string& text, const Shape& shape) {
  const std::size_t at = text.find('@');
  require(at != std::string::npos,
          "{} '{}' is no division; give a dimension or all, '@', and ranks, like 0@0..3 or all@4,5.", flag, text);
  std::vector<int> ranks;
  for (const std::string_view part : split(std::string_view(text).substr(at + 1), ',')) {
    const std::size_t dots = part.find("..");
    const auto first = static_cast<int>(number(flag, part.substr(0, dots), text, most_ranks));
    const auto last =
        dots == std::string_view::npos ? first : static_cast<int>(number(flag, part.substr(dots + 2), text, most_ranks));
    require(first <= last, "{} '{}' has a range whose end is below its beginning.", flag, text);
    for (int rank = first; rank <= last; ++rank) ranks.push_back(rank);
  }
  if (text.substr(0, at) == "all") return Division::replicated(shape, ranks);
  return Division::along(
      static_cast<std::size_t>(number(flag, text.substr(0, at), text, static_cast<std::int64_t>(Shape::most))), shape,
      ranks);
}

bool parse(int argc, char** argv, MoveLine& line) {
  CLI::App app(
      "Plans how a tensor that lies divided over some ranks comes to others: proves the plan, and prints its blocks, what "
      "each\n"
      "rank sends and receives, and with --gbit the time that links allow.",
      "stretto-plan move");
  app.set_help_flag("-h,--help", "Print this help");
  app.add_option("--shape", line.shape, "Of the tensor, like 4096,1024")->required();
  app.add_option("--from", line.from, "Dimension @ ranks, like 0@0..3, or all@0,1 for copies")->required();
  app.add_option("--to", line.to, "Likewise")->required();
  app.add_option("--dtype", line.dtype, "Type of the elements")->capture_default_str();
  app.add_option("--format", line.format, "Of messages: none, int8, int4, fp8 or onebit")->capture_default_str();
  auto* nodes = app.add_option("--ranks-per-node", line.ranks_per_node, "Ranks of a node; default: all")
                    ->check(CLI::Range(1, most_ranks));
  app.add_option("--buffer", line.buffer, "Most bytes of messages that a rank holds; 0: no bound; suffix K, M or G")
      ->capture_default_str();
  app.add_option("--gbit", line.gbit, "Rate of a node's link, in Gb/s each way")->needs(nodes)->check(CLI::PositiveNumber);
  return apps::parse_flags(app, argc, argv);
}

void plan_move_of(int argc, char** argv) {
  MoveLine line;
  if (!parse(argc, argv, line)) return;
  Shape shape;
  for (const std::string_view extent : split(line.shape, ',')) {
    shape.push_back(number("--shape", extent, line.shape, std::int64_t{1} << 40));
  }
  const MovedTensor tensor{dtype_from_name(line.dtype.c_str()), shape, division_from_text("--from", line.from, shape),
                           division_from_text("--to", line.to, shape), quantized_format_from_name(line.format)};
  int ranks = 0;
  for (const Division* division : {&tensor.from, &tensor.to}) {
    for (const int rank : division->ranks) ranks = std::max(ranks, rank + 1);
  }
  std::vector<int> nodes;
  for (int rank = 0; line.ranks_per_node > 0 && rank < ranks; ++rank) nodes.push_back(rank / line.ranks_per_node);
  const std::int64_t buffer = line.buffer == "0" ? 0 : perf::bytes_from_text("--buffer", line.buffer);
  const MovePlan plan = plan_move({tensor}, ranks, nodes, buffer);
  const auto fault = verify(plan);
  require(!fault, "The plan is wrong: {}", fault.value_or(""));

  const std::string blocks = plan.to_string();
  std::size_t printed = 0;
  for (const std::string_view text : split(blocks, '\n')) {
    if (printed++ < most_lines) fmt::print("{}\n", text);
  }
  if (printed > most_lines) fmt::print("... and {} more\n", printed - most_lines);
  for (int rank = 0; rank < ranks; ++rank) {
    fmt::print("rank {}: {} before, {} behind it; sends {}, receives {}, buffers {}\n", rank,
               perf::in_units(static_cast<double>(tensor.from.elements(rank)) * static_cast<double>(size_of(tensor.dtype))),
               perf::in_units(static_cast<double>(tensor.to.elements(rank)) * static_cast<double>(size_of(tensor.dtype))),
               perf::in_units(static_cast<double>(plan.bytes_out_of(rank))),
               perf::in_units(static_cast<double>(plan.bytes_into(rank))),
               perf::in_units(static_cast<double>(plan.buffer_bytes(rank))));
  }
  fmt::print("proved: every element arrives once; {} exchange{}\n", plan.phases.size(), plan.phases.size() == 1 ? "" : "s");
  if (!nodes.empty()) {
    fmt::print("between nodes: {}\n", perf::in_units(static_cast<double>(plan.bytes_between_nodes(nodes))));
    if (line.gbit > 0) fmt::print("links allow {:.4g} ms\n", 1e3 * least_seconds(plan, nodes, line.gbit * 1e9 / 8));
  }
}

}  // namespace plan_tool
