#include "apps/train/options/diloco_options.hpp"

#include <CLI/CLI.hpp>

#include "apps/common/fail.hpp"

namespace apps {

void add_diloco_options(CLI::App& app, stretto::DiLoCoOptions& options) {
  app.add_option(
         "--replicas", options.replicas,
         "With --diloco, runs of consecutive ranks, such as hosts, that each train the whole model by the layout of the "
         "other flags")
      ->capture_default_str();
  app.add_option("--diloco", options.sync_every,
                 "Steps after which replicas agree on weights by a step of an outer optimizer (DiLoCo), instead of summing "
                 "gradients in each step")
      ->default_str("never");
  app.add_option("--outer-lr", options.lr, "With --diloco, the outer optimizer's learning rate")->capture_default_str();
  app.add_option("--outer-momentum", options.momentum, "With --diloco, the outer optimizer's Nesterov momentum")
      ->capture_default_str();
  app.add_option("--diloco-fragments", options.fragments,
                 "With --diloco, parts of the model that are exchanged in turn, each once in a round")
      ->capture_default_str();
  app.add_option("--diloco-delay", options.fragment_sync_delay,
                 "With --diloco, steps that compute while a part is exchanged")
      ->capture_default_str();
  app.add_option("--diloco-alpha", options.fragment_update_alpha,
                 "With --diloco, the share of a replica's own values in those that it goes on from")
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--diloco-format", [&](const std::string& name) { options.format = stretto::quantized_format_from_name(name); },
         "With --diloco, the format in which changes of weights travel, with error feedback")
      ->check(CLI::IsMember({"none", "int8", "int4"}))
      ->default_str("none");
}

void check_diloco_options(const CLI::App& app, const stretto::DiLoCoOptions& options) {
  require(app.count("--diloco") == 0 || options.replicas != 1,
          "--diloco {} is for several replicas that agree every so many steps; give --replicas 2 or more.",
          options.sync_every);
  for (const char* const flag : {"--replicas", "--outer-lr", "--outer-momentum", "--diloco-fragments", "--diloco-delay",
                                 "--diloco-alpha", "--diloco-format"}) {
    require(
        app.count("--diloco") > 0 || app.count(flag) == 0 || (flag == std::string("--replicas") && options.replicas == 1),
        "{} has no effect without --diloco; give the steps between two exchanges, such as --diloco 100.", flag);
  }
  require(!options.any() || options.sync_every % std::max(options.fragments, 1) == 0,
          "--diloco-fragments {} does not divide --diloco {}, the steps in which each is exchanged once; give a divisor.",
          options.fragments, options.sync_every);
  options.check();
}

}  // namespace apps
