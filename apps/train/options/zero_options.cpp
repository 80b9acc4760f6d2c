#include "apps/train/options/zero_options.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/common/fail.hpp"

namespace apps {

using stretto::QuantizedFormat;
using stretto::zero_stages;

namespace {

using InFile = stretto::ShardedParameters::Options::InFile;
using Offload = stretto::ShardedParameters::Options::Offload;

constexpr std::array<std::pair<std::string_view, InFile Offload::*>, 3> places = {
    {{"optimizer", &Offload::optimizer}, {"gradients", &Offload::gradients}, {"values", &Offload::values}}};
constexpr std::string_view activations = "activations";

// WHAT=DIR[,ratio=R]
void add_offload(const std::string& text, stretto::TrainingOptions& options) {
  constexpr std::string_view share = ",ratio=";
  const std::size_t equals = text.find('=');
  const std::string_view what = std::string_view(text).substr(0, equals);
  const auto place = std::ranges::find(places, what, &decltype(places)::value_type::first);
  require((place != places.end() || what == activations) && equals != std::string::npos && equals + 1 < text.size(),
          "--offload '{}' does not say what goes where; write optimizer=DIRECTORY, gradients=DIRECTORY, values=DIRECTORY or "
          "activations=DIRECTORY, and ,ratio=0.6 for the share that stays in memory.",
          text);
  const std::size_t comma = text.rfind(share);
  const bool has_ratio = comma != std::string::npos;
  const std::string directory = text.substr(equals + 1, has_ratio ? comma - equals - 1 : comma);
  require(!directory.empty(), "--offload '{}' names no directory; write {}=DIRECTORY.", text, what);
  const auto require_first = [&](const std::string& given) {
    require(given.empty(), "--offload '{}' comes after {}={}; give one directory for {}.", text, what, given, what);
  };
  if (what == activations) {
    require_first(options.recompute.directory);
    require(!has_ratio, "--offload '{}': all kept activations lie in the file; leave the ratio out.", text);
    options.recompute.directory = directory;
    return;
  }
  InFile& in_file = options.sharding.offload.*place->second;
  require_first(in_file.directory);
  in_file = {.directory = directory};
  if (!has_ratio) return;
  const char* const first = text.data() + comma + share.size();
  const char* const end = text.data() + text.size();
  const auto [behind, error] = std::from_chars(first, end, in_file.ratio);
  require(error == std::errc() && behind == end && in_file.ratio >= 0 && in_file.ratio <= 1,
          "--offload '{}' has no share that stays in memory behind ratio=; give a number from 0 to 1.", text);
}

void check_scratch(std::string_view what, const std::string& directory) {
  if (directory.empty() || access(directory.c_str(), W_OK | X_OK) == 0) return;
  fail(stretto::ErrorCode::invalid_argument, "--offload {}={} is no directory that this process may write to: {}.", what,
       directory, std::strerror(errno));
}

}  // namespace

void add_zero_options(CLI::App& app, stretto::TrainingOptions& options) {
  stretto::ShardedParameters::Options& sharding = options.sharding;
  const auto format = [](const std::string& name) {
    return name == "none" ? QuantizedFormat::none : name == "int8" ? QuantizedFormat::int8 : QuantizedFormat::int4;
  };
  app.add_option_function<std::string>(
         "--zero",
         [&sharding](const std::string& stage) { sharding.zero = zero_stages.at(static_cast<std::size_t>(stage[0] - '0')); },
         "What data-parallel ranks keep a share of only: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 values too. "
         "The "
         "embedding table that two stages of a pipeline share stays at 1")
      ->check(CLI::IsMember({"0", "1", "2", "3"}))
      ->default_str("1");
  app.add_option(
         "--prefetch", sharding.prefetch,
         "With --zero 3, units of parameters gathered ahead of their use; with 2 and 3, units of gradients in flight")
      ->capture_default_str();
  app.add_option("--tiles", options.tiles,
                 "With --zero 3 or --base, parts of the outputs of each linear layer that are gathered or restored, and "
                 "multiplied, one after the other (ZeRO-Infinity's memory-centric tiling); sums of --tp then no longer hide "
                 "behind products")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option_function<std::vector<std::string>>(
         "--offload",
         [&options](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) add_offload(text, options);
         },
         "optimizer=DIR keeps the optimizer's state in a scratch file there (ZeRO-Infinity), with --zero 2 and 3 "
         "gradients=DIR the gradients, with 3 values=DIR the values; with ,ratio=0.6 that share of it in memory; with "
         "--recompute full activations=DIR the inputs of blocks. Give the flag once for each")
      ->allow_extra_args(false)
      ->take_all();
  app.add_flag(
      "--speculate", sharding.offload.speculates,
      "With --offload optimizer=DIR: updates begin behind backward, before the norm is known, and are taken back where "
      "clipping or an overflow says so");
  app.add_option("--delay", sharding.delay,
                 "1: update with the gradients of the step before, whose sums have had a step to arrive; with --offload "
                 "optimizer=DIR the update runs behind the next step's computation")
      ->capture_default_str();
  app.add_option("--delay-from", options.delay_from, "With --delay 1, how many updates are made without the delay first")
      ->capture_default_str();
  app.add_option(
         "--powersgd", sharding.powersgd.rank,
         "Sum gradients of matrices in factors of so many columns, with error feedback (PowerSGD), for slow links; 0: "
         "as they are")
      ->capture_default_str();
  app.add_option("--powersgd-start", sharding.powersgd.start,
                 "With --powersgd, how many updates are made with gradients summed as they are first")
      ->capture_default_str();
  app.add_option("--hpz-size", sharding.hpz_size,
                 "With --zero 3, neighbouring data-parallel ranks that keep a second copy, for backward (ZeRO++ hpZ)")
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--qwz", [&sharding, format](const std::string& name) { sharding.qwz = format(name); },
         "With --zero 3, the format in which parameters are gathered (ZeRO++ qwZ)")
      ->check(CLI::IsMember({"none", "int8"}))
      ->default_str("none");
  app.add_option_function<std::string>(
         "--qgz", [&sharding, format](const std::string& name) { sharding.qgz = format(name); },
         "With --zero 3, the format in which gradients are summed (ZeRO++ qgZ)")
      ->check(CLI::IsMember({"none", "int8", "int4"}))
      ->default_str("none");
  app.add_flag("--qgz-error-feedback", sharding.qgz_error_feedback, "Add what --qgz loses to the next gradient");
  app.add_flag_callback(
      "--qgz-stochastic", [&sharding] { sharding.qgz_rounding = stretto::Rounding::stochastic; },
      "Round at random with the right mean in --qgz");
}

void check_zero_options(const CLI::App& app, const stretto::TrainingOptions& options) {
  const stretto::ShardedParameters::Options& sharding = options.sharding;
  require(sharding.delay == 0 || sharding.delay == 1,
          "--delay {} is no delay that gradients can have; give 1, or 0 for none.", sharding.delay);
  require(app.count("--prefetch") == 0 || sharding.delay == 0 || sharding.zero == stretto::ZeroStage::values,
          "--prefetch {} has no effect with --delay {}, with which the gradients of all units are in flight; leave it out.",
          sharding.prefetch, sharding.delay);
  require(sharding.powersgd.rank >= 0, "--powersgd {} is no number of columns; give 1 or more, or 0 for none.",
          sharding.powersgd.rank);
  require(app.count("--powersgd-start") == 0 || sharding.powersgd.any(),
          "--powersgd-start {} has no effect without --powersgd; give its rank, such as --powersgd 4.",
          sharding.powersgd.start);
  for (const auto& [what, in_file] : places) check_scratch(what, (sharding.offload.*in_file).directory);
  check_scratch(activations, options.recompute.directory);
  if (app.count("--prefetch") == 0) return;
  require(sharding.zero >= stretto::ZeroStage::gradients,
          "--prefetch {} has no effect with --zero {}; leave it out, or give --zero 2 or 3.", sharding.prefetch,
          static_cast<int>(sharding.zero));
  require(sharding.overlap, "--prefetch {} has no effect with --no-overlap; leave one of them out.", sharding.prefetch);
}

}  // namespace apps
