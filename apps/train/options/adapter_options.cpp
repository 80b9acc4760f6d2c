#include "apps/train/options/adapter_options.hpp"

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "apps/common/fail.hpp"
#include "apps/train/options/number_flags.hpp"
#include "stretto/models/adapter_files.hpp"

namespace apps {

using stretto::AdapterOptions;

namespace {

constexpr const char* rank_flag = "--lora";
constexpr const char* with_flag = "--with-adapter";
constexpr const char* dependent_flags[] = {"--lora-alpha",         "--lora-rslora",
                                           "--lora-init",          "--lora-targets",
                                           "--lora-layers",        "--lora-rank-pattern",
                                           "--lora-alpha-pattern", "--lora-modules-to-save",
                                           "--lora-dropout",       "--base"};

std::vector<std::string> split(const std::string& list, char separator = ',') {
  std::vector<std::string> parts;
  for (std::size_t at = 0; !list.empty() && at <= list.size();) {
    const std::size_t end = std::min(list.find(separator, at), list.size());
    parts.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// Names have letters, digits, and what joins them in paths.
bool is_list_of_names(const std::string& text) {
  return std::ranges::all_of(
      text, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-' || c == ','; });
}

template <class Number>
Number number_of(const char* flag, const std::string& text) {
  const std::string refusal = refuse_number<Number>(text);
  require(refusal.empty(), "{}: {}.", flag, refusal);
  Number number{};
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

template <class Number>
std::vector<std::pair<std::string, Number>> pattern_of(const char* flag, const std::string& text) {
  std::vector<std::pair<std::string, Number>> pattern;
  for (const std::string& each : split(text)) {
    const std::size_t sign = each.find_last_of('=');
    require(sign != std::string::npos && sign > 0, "{} {} has '{}', which is no NAME=NUMBER.", flag, text, each);
    pattern.emplace_back(each.substr(0, sign), number_of<Number>(flag, each.substr(sign + 1)));
  }
  return pattern;
}

std::vector<std::int64_t> layers_of(const std::string& text) {
  constexpr std::int64_t most = 100000;
  std::vector<std::int64_t> layers;
  for (const std::string& each : split(text)) {
    const std::size_t dash = each.find('-', 1);
    const auto first = number_of<std::int64_t>("--lora-layers", each.substr(0, dash));
    const auto last = dash == std::string::npos ? first : number_of<std::int64_t>("--lora-layers", each.substr(dash + 1));
    require(first >= 0 && first <= last && last < most, "--lora-layers {} has '{}', which names no layers; give 0-3,7.",
            text, each);
    for (std::int64_t layer = first; layer <= last; ++layer) layers.push_back(layer);
  }
  return layers;
}

// Patterns are lists in flags and in checkpoints.
void require_no_comma(const std::string& directory, const std::string& pattern) {
  require(pattern.find(',') == std::string::npos, "--load-adapter {} has the pattern '{}'; write it without a comma.",
          directory, pattern);
}

}  // namespace

void add_adapter_options(CLI::App& app, AdapterFlags& flags) {
  app.add_option(rank_flag, flags.rank, "Train adapters of this rank (LoRA) instead of the model; none when 0")
      ->capture_default_str();
  app.add_option("--lora-alpha", flags.alpha, "Adapters count alpha / rank times")->capture_default_str();
  app.add_flag("--lora-rslora", flags.uses_root, "Adapters count alpha / sqrt(rank) times");
  app.add_option("--lora-dropout", flags.dropout, "Adapters drop so much of their input in training: 0 or more, less than 1")
      ->capture_default_str();
  app.add_option("--lora-init", flags.init, "A begins uniform in +-1/sqrt(inputs), or gaussian with deviation 1/rank")
      ->check(CLI::IsMember({"uniform", "gaussian"}))
      ->capture_default_str();
  app.add_option(
      "--lora-targets", flags.targets,
      "Modules with adapters: NAME,NAME in Hugging Face's names, all-linear, or an expression for whole paths; when "
      "left out, c_attn of a GPT-2, and q_proj,v_proj of others");
  app.add_option("--lora-layers", flags.layers, "Layers with adapters: 0-3,7; all when left out");
  app.add_option("--lora-rank-pattern", flags.rank_pattern, "Other ranks, the first that matches: NAME=R,NAME=R");
  app.add_option("--lora-alpha-pattern", flags.alpha_pattern, "Other alphas, the first that matches: NAME=ALPHA,NAME=ALPHA");
  app.add_option("--lora-modules-to-save", flags.modules_to_save,
                 "Modules that are trained whole beside the adapters: NAME,NAME");
  app.add_option("--base", flags.base,
                 "How the frozen weights of linear modules are kept: in 4.127 bits each, or 8.125 (QLoRA)")
      ->check(CLI::IsMember({"plain", "nf4", "int8"}))
      ->capture_default_str();
  app.add_option(
         with_flag, flags.with,
         "Directories of peft's whose adapters are added, frozen, beside those that are trained or --load-adapter's: "
         "DIR, or DIR,weight=0.5 to count them so often")
      ->take_all();
}

std::vector<WithAdapter> with_adapters(const std::vector<std::string>& texts) {
  std::vector<WithAdapter> result;
  for (const std::string& text : texts) {
    constexpr std::string_view share = ",weight=";
    const std::size_t comma = text.find(share);
    WithAdapter& its = result.emplace_back(WithAdapter{text.substr(0, comma), fmt::format("{}", result.size() + 1)});
    if (comma != std::string::npos) its.weight = number_of<double>(with_flag, text.substr(comma + share.size()));
    require(!its.directory.empty(), "{} '{}' names no directory; write DIR or DIR,weight=0.5.", with_flag, text);
  }
  return result;
}

AdapterOptions adapters_of(const CLI::App& app, const AdapterFlags& flags) {
  require(flags.rank >= 0, "--lora {} is no rank; give 1 or more, or 0 for no adapters.", flags.rank);
  for (const char* const flag : dependent_flags) {
    require(app.count(flag) == 0 || flags.rank > 0, "{} is of adapters; give --lora RANK, or leave it out.", flag);
  }
  require(flags.with.empty() || flags.rank > 0,
          "{} adds adapters beside others; give --load-adapter for a single one, or --lora to train one beside it.",
          with_flag);
  if (flags.rank == 0) return {};
  AdapterOptions options{.rank = flags.rank,
                         .alpha = flags.alpha,
                         .dropout = flags.dropout,
                         .uses_root = flags.uses_root,
                         .gaussian = flags.init == "gaussian",
                         .rank_pattern = pattern_of<std::int64_t>("--lora-rank-pattern", flags.rank_pattern),
                         .alpha_pattern = pattern_of<double>("--lora-alpha-pattern", flags.alpha_pattern),
                         .layers_to_transform = layers_of(flags.layers),
                         .modules_to_save = split(flags.modules_to_save),
                         .base = stretto::stored_format_from_name(flags.base)};
  if (is_list_of_names(flags.targets)) {
    options.targets = split(flags.targets);
  } else {
    options.expression = flags.targets;
  }
  for (const WithAdapter& each : with_adapters(flags.with)) {
    options.others.emplace_back(each.name, stretto::AdapterFiles::of_directory(each.directory).options());
  }
  return options;
}

std::map<std::string, std::string> adapter_notes(const AdapterFlags& flags) {
  if (flags.rank == 0) return {};
  return {{rank_flag, fmt::format("{}", flags.rank)},
          {"--lora-alpha", fmt::format("{}", flags.alpha)},
          {"--lora-rslora", flags.uses_root ? "1" : "0"},
          {"--lora-dropout", fmt::format("{}", flags.dropout)},
          {"--lora-init", flags.init},
          {"--lora-targets", flags.targets},
          {"--lora-layers", flags.layers},
          {"--lora-rank-pattern", flags.rank_pattern},
          {"--lora-alpha-pattern", flags.alpha_pattern},
          {"--lora-modules-to-save", flags.modules_to_save},
          {"--base", flags.base},
          {with_flag, fmt::format("{}", fmt::join(flags.with, "\n"))}};
}

void take_adapter_files(const CLI::App& app, const std::string& directory, AdapterFlags& flags) {
  for (const char* const flag : dependent_flags) {
    const bool is_of_base = std::string(flag) == "--base";
    require(is_of_base || app.count(flag) == 0, "{} is said by --load-adapter {}; leave it out.", flag, directory);
  }
  require(app.count(rank_flag) == 0, "{} is said by --load-adapter {}; leave it out.", rank_flag, directory);
  const AdapterOptions options = stretto::AdapterFiles::of_directory(directory).options();
  const auto pattern = [](const auto& values) {
    std::vector<std::string> each;
    each.reserve(values.size());
    for (const auto& [name, value] : values) each.push_back(fmt::format("{}={}", name, value));
    return fmt::format("{}", fmt::join(each, ","));
  };
  for (const auto& [name, rank] : options.rank_pattern) require_no_comma(directory, name);
  for (const auto& [name, alpha] : options.alpha_pattern) require_no_comma(directory, name);
  flags = {.rank = options.rank,
           .alpha = options.alpha,
           .dropout = options.dropout,
           .uses_root = options.uses_root,
           .init = options.gaussian ? "gaussian" : "uniform",
           .targets = options.expression.empty() ? fmt::format("{}", fmt::join(options.targets, ",")) : options.expression,
           .layers = fmt::format("{}", fmt::join(options.layers_to_transform, ",")),
           .rank_pattern = pattern(options.rank_pattern),
           .alpha_pattern = pattern(options.alpha_pattern),
           .modules_to_save = fmt::format("{}", fmt::join(options.modules_to_save, ",")),
           .base = flags.base,
           .with = flags.with};
}

void take_saved_adapters(const CLI::App& app, const std::map<std::string, std::string>& notes, AdapterFlags& flags) {
  if (!notes.contains(rank_flag)) return;
  if (app.count(rank_flag) > 0) {
    for (const auto& [flag, given] : adapter_notes(flags)) {
      const auto saved = notes.find(flag);
      require(
          saved == notes.end() || saved->second == given,
          "{} is '{}', and '{}' in the checkpoint; leave --lora and its flags out, which takes the adapters that it has.",
          flag, given, saved == notes.end() ? "" : saved->second);
    }
    return;
  }
  for (const char* const flag : dependent_flags) {
    require(app.count(flag) == 0, "{} is another adapter's than that of the checkpoint; leave it out, or give --lora.",
            flag);
  }
  const auto text = [&](const char* flag) {
    const auto found = notes.find(flag);
    return found == notes.end() ? std::string() : found->second;
  };
  const std::vector<std::string> with = app.count(with_flag) > 0 ? flags.with : split(text(with_flag), '\n');
  flags = {.rank = number_of<std::int64_t>(rank_flag, text(rank_flag)),
           .alpha = number_of<double>("--lora-alpha", text("--lora-alpha")),
           .dropout = notes.contains("--lora-dropout") ? number_of<double>("--lora-dropout", text("--lora-dropout")) : 0,
           .uses_root = text("--lora-rslora") == "1",
           .init = text("--lora-init"),
           .targets = text("--lora-targets"),
           .layers = text("--lora-layers"),
           .rank_pattern = text("--lora-rank-pattern"),
           .alpha_pattern = text("--lora-alpha-pattern"),
           .modules_to_save = text("--lora-modules-to-save"),
           .base = notes.contains("--base") ? text("--base") : "plain",
           .with = with};
}

}  // namespace apps
