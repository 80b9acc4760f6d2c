#include <cstdio>

#include "common/fail.hpp"
#include "perf/result.hpp"

namespace perf {

namespace {

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

// Times from 0.01 us to days fit; four digits are enough.
std::string figure(double value) {
  if (value < 10) return fmt::format("{:.2f}", value);
  if (value < 1000) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

std::string joined(const std::vector<std::string>& words, const char* none) {
  return words.empty() ? none : fmt::format("{}", fmt::join(words, ", "));
}

std::string quantization_text(const stretto::Quantization& quantization) {
  std::string text = name(quantization.format);
  if (quantization.result != stretto::QuantizedFormat::none)
    text += fmt::format(", sums for all as {}", name(quantization.result));
  const bool stochastic = quantization.rounding == stretto::Rounding::stochastic;
  return text + (stochastic ? ", rounded stochastically" : ", rounded to nearest") +
         "; #wrong counts elements that are farther from the exact result than this allows";
}

constexpr const char* over_names[] = {"rank 0's", "the average of the ranks'", "the least of the ranks'",
                                      "the most of the ranks'"};

}  // namespace

double algorithm_bandwidth(const Case& test_case, double seconds) {
  return static_cast<double>(test_case.bytes()) / seconds * 1e-9;
}
double bus_bandwidth(const Case& test_case, double seconds) {
  return algorithm_bandwidth(test_case, seconds) * test_case.bus_factor();
}

void Table::comment(const std::string& sentence) const { say("# " + sentence); }

void Table::header(const Machine& machine) const {
  comment(fmt::format("Stretto {}: {}", machine.version, options_.command));
  comment(fmt::format("{} ranks ({}) on {}; {}, {} cores", machine.ranks, options_.threads ? "threads" : "processes",
                      joined(machine.hosts, "an unnamed host"), machine.cpu, machine.cores));
  comment(fmt::format("transport {}; settings that differ from their defaults: {}", machine.transport,
                      joined(machine.settings, "none")));
  if (!machine.peers.empty()) comment(fmt::format("timed in turn on the same buffers: {}", joined(machine.peers, "")));
  const std::string where = machine.gpu.empty()
                                ? fmt::format("{} memory", name_of(options_.memory))
                                : fmt::format("the memory of a GPU ({}); times are the GPU's, from events", machine.gpu);
  comment(fmt::format("buffers in {}{}", where, options_.prepared ? "; operations are prepared once" : ""));
  if (options_.servers > 0) comment(fmt::format("the last {} ranks are servers, without a vector", options_.servers));
  if (options_.is_quantized()) comment("quantized: " + quantization_text(options_.quantization));
  const std::string loop = options_.seconds > 0 ? fmt::format("{} s of", options_.seconds)
                           : options_.least_seconds > 0
                               ? fmt::format("{} or {} s of", options_.iterations, options_.least_seconds)
                               : fmt::format("{}", options_.iterations);
  comment(fmt::format("{} iterations after {}{}; times are {}; GB = 1e9 bytes; {}", loop, options_.warmup,
                      options_.cycles > 1 ? fmt::format(", the median of {} such loops", options_.cycles) : "",
                      over_names[static_cast<int>(options_.over)],
                      options_.check ? "every element is checked" : "results are not checked"));
  comment("");
}

void Table::columns() const {
  std::string block = fmt::format("{:>9} {:>9} {:>9} {:>7} {:>7} {:>6}", "time", "p50", "p99", "algbw", "busbw", "#wrong");
  block += fmt::format(" {:>11} {:>11}", "wire", "inter");
  std::string units = fmt::format("{:>9} {:>9} {:>9} {:>7} {:>7} {:>6}", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "");
  units += fmt::format(" {:>11} {:>11}", "(B)", "(B)");
  if (options_.is_quantized()) {
    block += fmt::format(" {:>9} {:>9}", "max err", "rms err");
    units += std::string(20, ' ');
  }
  for (const std::string& peer : options_.peers) {
    block += fmt::format(" {:>9} {:>7}", peer, "ratio");
    units += fmt::format(" {:>9} {:>7}", "(us)", "");
  }
  const auto line = [&](const char* left, const char* out_of_place, const char* in_place) {
    std::string text = left;
    if (options_.out_of_place) text += fmt::format(" |{:^{}}", out_of_place, block.size());
    if (options_.in_place) text += fmt::format(" |{:^{}}", in_place, block.size());
    say(text);
  };
  const std::string blank(72, ' ');
  line(("#" + blank).c_str(), "out of place", "in place");
  line(fmt::format("#{:>11} {:>11} {:>7} {:>7} {:>5}  {:<26}", "size", "count", "type", "redop", "root", "algo").c_str(),
       block.c_str(), block.c_str());
  line(fmt::format("#{:>11} {:>11}{}", "(B)", "(elements)", std::string(49, ' ')).c_str(), units.c_str(), units.c_str());
}

std::string Table::cells(const Case& test_case, const std::optional<Placement>& placement) {
  if (!placement) {
    std::string text = fmt::format("{0:>9} {0:>9} {0:>9} {0:>7} {0:>7} {0:>6}", "N/A");
    text += fmt::format(" {0:>11} {0:>11}", "N/A");
    if (options_.is_quantized()) text += fmt::format(" {0:>9} {0:>9}", "N/A");
    for (std::size_t i = 0; i < options_.peers.size(); ++i) text += fmt::format(" {0:>9} {0:>7}", "N/A");
    return text;
  }
  const Timing& timing = placement->timing;
  std::string text =
      fmt::format("{:>9} {:>9} {:>9} {:>7.2f} {:>7.2f} {:>6}", figure(timing.mean * 1e6), figure(timing.p50 * 1e6),
                  figure(timing.p99 * 1e6), algorithm_bandwidth(test_case, timing.mean),
                  bus_bandwidth(test_case, timing.mean), placement->wrong ? std::to_string(*placement->wrong) : "N/A");
  text += fmt::format(" {:>11} {:>11}", placement->wire_bytes, placement->wire_bytes_inter);
  if (options_.is_quantized()) {
    for (const auto& error : {placement->max_error, placement->rms_error}) {
      text += fmt::format(" {:>9}", error ? fmt::format("{:.3g}", *error) : "N/A");
    }
  }
  for (const std::optional<Timing>& peer : placement->peers) {
    text += peer ? fmt::format(" {:>9} {:>7.2f}", figure(peer->mean * 1e6), peer->p50 / timing.p50)
                 : fmt::format(" {0:>9} {0:>7}", "N/A");
  }
  wrong_ += placement->wrong.value_or(0);
  if (test_case.bytes() > 0) {
    bandwidth_ += bus_bandwidth(test_case, timing.mean);
    ++bandwidths_;
  }
  return text;
}

void Table::row(const Row& row) {
  const Case& test_case = row.test_case;
  const std::int64_t elements =
      test_case.count > 0 ? test_case.count : test_case.bytes() / static_cast<std::int64_t>(size_of(test_case.dtype));
  std::string text =
      fmt::format(" {:>11} {:>11} {:>7} {:>7} {:>5}  {:<26}", test_case.bytes(), elements, name(test_case.dtype),
                  reduces(test_case.test->collective) ? name_of(test_case.op) : "none",
                  has_root(test_case.test->collective) ? std::to_string(test_case.root) : "-1", row.algorithm);
  if (options_.out_of_place) text += " |" + cells(test_case, row.out_of_place);
  if (options_.in_place) text += " |" + cells(test_case, row.in_place);
  say(text);
}

void Table::footer() const {
  comment("");
  if (options_.check) comment(fmt::format("Out of bounds values : {} {}", wrong_, wrong_ == 0 ? "OK" : "FAILED"));
  comment(fmt::format("Avg bus bandwidth    : {:.4f}", bandwidths_ > 0 ? bandwidth_ / bandwidths_ : 0.0));
}

}  // namespace perf
