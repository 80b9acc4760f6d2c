// Link models from JSON. Every key is checked, because a misspelt key would silently leave a default in place.
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <set>

#include "core/fail.hpp"
#include "core/files/json_error.hpp"
#include "core/files/text_file.hpp"
#include "core/whole_number.hpp"
#include "stretto/planning/simulate.hpp"

namespace stretto {
namespace {

using Json = nlohmann::json;

void check_keys(const Json& object, const std::string& where, const std::set<std::string>& known) {
  require(object.is_object(), "{} of a link model is no JSON object.", where);
  for (const auto& [key, value] : object.items()) {
    require(known.count(key) != 0, "{} of a link model has the key '{}'; known are {}.", where, key, fmt::join(known, ", "));
  }
}

double number(const Json& object, const std::string& where, const char* key, bool may_be_zero) {
  require(object.contains(key) && object[key].is_number(), "{} of a link model needs a number '{}'.", where, key);
  const double value = object[key].get<double>();
  require(value > 0 || (may_be_zero && value == 0), "{} of a link model has {} = {}; choose a {} number.", where, key, value,
          may_be_zero ? "non-negative" : "positive");
  return value;
}

int count_of(const Json& object, const std::string& where, const char* key) {
  constexpr int most = 1 << 20;
  const std::optional<int> number = whole_number(object[key], 1, most);
  require(number.has_value(), "{} of a link model has {} = {}; choose a whole number from 1 to {}.", where, key,
          object[key].dump(), most);
  return *number;
}

LinkLevel level_of(const Json& object, std::size_t i, bool last) {
  const std::string where = fmt::format("Level {}", i);
  check_keys(object, where, {"name", "ranks", "alpha_us", "overhead_us", "bandwidth_gbs", "ports", "own_ports"});
  require(object.contains("name") && object["name"].is_string(), "{} of a link model needs a name.", where);
  LinkLevel level;
  level.name = object["name"].get<std::string>();
  level.alpha_us = number(object, where, "alpha_us", true);
  level.overhead_us = number(object, where, "overhead_us", true);
  level.bandwidth_gbs = number(object, where, "bandwidth_gbs", false);
  require(last || object.contains("ranks"), "{} ({}) of a link model needs 'ranks'; only the last level may hold all.",
          where, level.name);
  if (object.contains("ranks")) level.ranks = count_of(object, where, "ranks");
  require(!last || !object.contains("ports"), "{} ({}) is the last of a link model, which nothing leaves; it has no ports.",
          where, level.name);
  if (object.contains("ports")) level.ports = count_of(object, where, "ports");
  if (object.contains("own_ports")) {
    require(object["own_ports"].is_boolean(), "{} of a link model has own_ports = {}; choose true or false.", where,
            object["own_ports"].dump());
    level.own_ports = object["own_ports"].get<bool>();
  }
  return level;
}

}  // namespace

LinkModel link_model_from_text(const std::string& text) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    fail(ErrorCode::invalid_argument, "A link model cannot be read: {}.", json_error_text(error));
  }
  check_keys(json, "The outermost part", {"levels", "local_gbs"});
  require(json.contains("levels") && json["levels"].is_array() && !json["levels"].empty(),
          "A link model needs at least one level in 'levels'.");
  LinkModel links;
  links.local_gbs = number(json, "The outermost part", "local_gbs", false);
  for (std::size_t i = 0; i < json["levels"].size(); ++i) {
    links.levels.push_back(level_of(json["levels"][i], i, i + 1 == json["levels"].size()));
    if (i == 0) continue;
    const LinkLevel &level = links.levels[i], &inner = links.levels[i - 1];
    require(level.ranks == 0 || level.ranks % inner.ranks == 0,
            "A unit of level {} holds {} ranks, which is no multiple of the {} of level {}.", level.name, level.ranks,
            inner.ranks, inner.name);
  }
  return links;
}

LinkModel link_model_from_file(const std::string& path) {
  const std::string text = text_of_file(path, fmt::format("The link model '{}'", path));
  require(!text.empty(), "The link model '{}' is empty.", path);
  return link_model_from_text(text);
}

}  // namespace stretto
