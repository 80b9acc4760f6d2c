#include "apps/train/options/flag_values.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "apps/train/data/data_file.hpp"

namespace apps {

namespace {

// Only rank 0 reads them, or only the process that starts ranks.
constexpr const char* of_one_rank[] = {"--help", "--nproc", "--max-restarts", "--rejoin", "--ranks", "--json", "--cluster"};
constexpr const char* paths[] = {"--train-data", "--val-data", "--vocab-file", "--merges-file", "--tokenizer", "--save",
                                 "--load",       "--load-hf",  "--export-hf",  "--log-dir",     "--trace"};

bool is_among(const auto& names, const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

template <class Number>
bool rewrite(std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  text = fmt::format("{}", number);
  return true;
}

}  // namespace

std::vector<stretto::NamedValue> flag_values(const CLI::App& app) {
  std::vector<stretto::NamedValue> values;
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (is_among(of_one_rank, name)) continue;
    std::string value = option->get_default_str();
    if (option->count() > 0) {
      const bool counts_each = option->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
      value = is_among(paths, name) ? "given"
              : counts_each         ? fmt::format("{}", fmt::join(option->results(), " "))
                                    : option->results().back();  // the last overrides
    }
    if (!rewrite<std::int64_t>(value)) rewrite<double>(value);
    if (name == "--schedule" && std::filesystem::is_regular_file(value)) {
      value = fmt::format("a file with the digest {:016x}", DataFile(value).digest());
    }
    values.push_back({name, value});
  }
  return values;
}

}  // namespace apps
