#include "apps/train/options/server_options.hpp"

#include <CLI/CLI.hpp>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/common/fail.hpp"
#include "apps/train/options/command_line.hpp"

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

void refuse_with_servers(const CLI::App& app, int servers) {
  struct Unfit {
    std::vector<const char*> flags;
    const char* reason;
  };
  const std::vector<Unfit> unfit = {
      {{"--load-hf", "--load-gguf"}, "servers' values begin from --seed or a checkpoint of --load"},
      {{"--lora", "--load-adapter", "--with-adapter"},
       "servers hold and update all values of a model, not those of adapters"},
      {{"--async-save"}, "servers write what they hold while workers wait"},
      {{"--elastic", "--rejoin"},
       "the others do not take over a lost worker's sequences; with --server-copies N they go on without up to N servers"},
      {{"--replicate-state"}, "workers have no optimizer's state; --server-copies N keeps that of servers N times more"},
      {{"--check-replicas", "--straggler-threshold", "--comm-report"},
       "it concerns ranks that sum gradients with one another"},
      {{"--layout", "--relayout-at", "--relayout-on-signal"},
       "with servers there is one layout, data-parallel workers, each with the whole model"},
      {{"--dry-run"}, "no formula has the memory of servers"},
      {{"--sample-only"}, "sampling updates nothing"},
  };
  for (const auto& [flags, reason] : unfit) {
    for (const char* const flag : flags) {
      require(app.count(flag) == 0, "{} does not go with --servers {}: {}; leave one of them out.", flag, servers, reason);
    }
  }
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
  app.add_option("--server-copies", options.copies,
                 "With --servers and --nproc, how many other servers have a copy of what each has: as many may be lost, and "
                 "training goes on")
      ->capture_default_str();
}

void check_server_options(const CLI::App& app, const CommandLine& line) {
  const int copies = line.trainer.servers.copies;
  const int servers = line.trainer.servers.count;
  require(servers >= 0, "--servers {} is no number of ranks; give 1 or more, or 0 for none.", servers);
  require(servers > 0 || app.count("--consistency") == 0,
          "--consistency {} has no effect without --servers; give their number.",
          consistency_text(line.trainer.servers.consistency));
  require(servers > 0 || app.count("--server-copies") == 0,
          "--server-copies {} has no effect without --servers; give their number.", copies);
  if (servers == 0) return;
  require(0 <= copies && copies < servers,
          "--servers {} cannot keep --server-copies {} of what each has besides it; give from 0 to {}.", servers, copies,
          servers - 1);
  require(copies == 0 || line.nproc > 0,
          "--server-copies {} needs --nproc: other launchers end all ranks when one is lost; give the number of ranks.",
          copies);
  const double clip = line.trainer.clip_norm;
  require(
      clip == 0,
      "--clip-grad {} needs the norm of the whole gradient, of which each of --servers {} has a part; give --clip-grad 0.",
      clip, servers);
  refuse_with_servers(app, servers);
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
