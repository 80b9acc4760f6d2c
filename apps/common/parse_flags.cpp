#include "apps/common/parse_flags.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "apps/common/fail.hpp"

namespace apps {

namespace {

// Levenshtein's distance.
std::size_t changes(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < to.size(); ++j) {
      const std::size_t replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

// Empty if nothing is near. flag: as it was given, without dashes.
std::string meant(const CLI::App& app, std::string flag, std::span<const ForeignName> foreign) {
  std::ranges::transform(flag, flag.begin(), [](char c) { return c == '_' ? '-' : CLI::detail::to_lower({c})[0]; });
  const auto known = std::ranges::find(foreign, flag, &ForeignName::foreign);
  const auto has = [&](std::string_view name) {
    return app.get_option_no_throw(std::string(name.substr(0, name.find(' ')))) != nullptr;
  };
  if (known != foreign.end() && has(known->own)) return known->own;
  std::string nearest;
  std::size_t least = std::max<std::size_t>(1, flag.size() / 4) + 1;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const std::size_t distance = changes(flag, name);
      if (distance >= least) continue;
      least = distance;
      nearest = "--" + name;
    }
  }
  return nearest;
}

}  // namespace

void refuse_command_line(const CLI::App& app, const CLI::ParseError& error, std::span<const ForeignName> foreign) {
  for (const std::string& word : app.remaining()) {
    const std::size_t begin = std::min(word.find_first_not_of('-'), word.size());
    const std::string flag = word.substr(0, word.find('='));
    const std::string other = begin > 0 && begin < flag.size() ? meant(app, flag.substr(begin), foreign) : "";
    if (other.empty()) continue;
    fail(stretto::ErrorCode::invalid_argument, "{} is unknown; did you mean {}? {} --help lists the flags.", flag, other,
         app.get_name());
  }
  fail(stretto::ErrorCode::invalid_argument, "{}; {} --help lists the flags.", error.what(), app.get_name());
}

bool parse_flags(CLI::App& app, int argc, char** argv, std::span<const ForeignName> foreign) {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    refuse_command_line(app, error, foreign);
  }
}

}  // namespace apps
