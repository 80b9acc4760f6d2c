#include "apps/train/options/server_options.hpp"

#include <CLI/CLI.hpp>
#include <charconv>
#include <string_view>
#include <utility>

#include "apps/common/fail.hpp"
#include "apps/train/options/options.hpp"

namespace apps {

using stretto::Consistency;

namespace {

Consistency consistency_of(const std::string& text) {
  if (text == "sequential") return Consistency::sequential();
  if (text == "eventual") return Consistency::eventual();
  const std::size_t equals = text.find('=');
  const std::string kind = text.substr(0, equals);
  int delay = -1;
  if (equals != std::string::npos) {
    const char* const end = text.data() + text.size();
    const auto [behind, error] = std::from_chars(text.data() + equals + 1, end, delay);
    if (error != std::errc() || behind != end) delay = -1;
  }
  require((kind == "bounded" || kind == "exact") && delay >= 0,
          "--consistency '{}' is unknown; give sequential, bounded=D or exact=D with D steps from 0 on, or eventual.", text);
  return kind == "bounded" ? Consistency::bounded(delay) : Consistency::exact(delay);
}

}  // namespace

void add_server_options(CLI::App& app, stretto::ServerOptions& options) {
  app.add_option("--servers", options.count,
                 "The last so many ranks hold the values and the optimizer's state, and update; the others, data-parallel "
                 "workers, push gradients and pull values")
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--consistency", [&](const std::string& text) { options.consistency = consistency_of(text); },
         "With --servers, what a worker's values have at a step: sequential, all workers' steps before; bounded=D, those up "
         "to D steps before, or newer; exact=D, just those, so that a run repeats; eventual, whatever there is")
      ->default_str("sequential");
}

void check_server_options(const CLI::App& app, const CommandLine& line) {
  const int servers = line.trainer.servers.count;
  require(servers >= 0, "--servers {} is no number of ranks; give 1 or more, or 0 for none.", servers);
  require(servers > 0 || app.count("--consistency") == 0,
          "--consistency {} has no effect without --servers; give their number.",
          consistency_text(line.trainer.servers.consistency));
  if (servers == 0) return;
  const double clip = line.trainer.clip_norm;
  require(
      clip == 0,
      "--clip-grad {} needs the norm of the whole gradient, of which each of --servers {} has a part; give --clip-grad 0.",
      clip, servers);
  // A server's state is not saved, and values come from a model's seed.
  for (const char* const flag :
       {"--save", "--load", "--load-hf", "--load-gguf", "--load-adapter", "--with-adapter", "--lora", "--resume",
        "--elastic", "--replicate-state", "--check-replicas", "--straggler-threshold", "--comm-report", "--layout",
        "--relayout-at", "--relayout-on-signal", "--rejoin", "--dry-run", "--sample-only"}) {
    require(
        app.count(flag) == 0,
        "{} does not go with --servers {}, which hold values from --seed and the optimizer's state for the length of a run; "
        "leave one of them out.",
        flag, servers);
  }
  require(line.device == stretto::Device::cpu, "--servers {} are for --device cpu; leave one of them out.", servers);
}

std::string consistency_text(const Consistency& consistency) {
  switch (consistency.kind) {
    case Consistency::Kind::exact: return fmt::format("exact={}", consistency.delay);
    case Consistency::Kind::eventual: return "eventual";
    case Consistency::Kind::bounded: break;
  }
  return consistency.delay == 0 ? "sequential" : fmt::format("bounded={}", consistency.delay);
}

}  // namespace apps
