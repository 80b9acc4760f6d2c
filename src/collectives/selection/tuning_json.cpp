// Tuning files. Every key is checked, because a misspelt key would be a table or a cost that is silently ignored.
#include <fmt/format.h>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/fail.hpp"
#include "core/files/json_error.hpp"
#include "core/whole_number.hpp"
#include "stretto/planning/tuning.hpp"

namespace stretto {
namespace {

void check_keys(const nlohmann::json& object, const std::vector<std::string>& known, const std::string& source) {
  for (const auto& [key, value] : object.items()) {
    require(std::find(known.begin(), known.end(), key) != known.end(),
            "{} has the key '{}', which means nothing there; {} do.", source, key, fmt::join(known, ", "));
  }
}

int count_from_json(const nlohmann::json& entry, const char* key, int least, const std::string& source) {
  constexpr int most = 1 << 20;
  const std::optional<int> count = whole_number(entry.at(key), least, most);
  require(count.has_value(), "{} has a route with {} = {}; it must be a whole number from {} to {}.", source, key,
          entry.at(key).dump(), least, most);
  return *count;
}

RouteCost route_from_json(const nlohmann::json& entry, const std::string& source) {
  check_keys(entry,
             {"route", "ranks", "ranks_per_core", "alpha_us", "overhead_us", "bandwidth_gbs", "local_gbs", "lane_gain",
              "quantize_ns", "ranks_per_node", "table", "symmetric_table"},
             "A route in " + source);
  RouteCost route;
  route.ranks = count_from_json(entry, "ranks", 1, source);
  if (entry.contains("ranks_per_node")) route.ranks_per_node = count_from_json(entry, "ranks_per_node", 0, source);
  route.rules = rules_from_text(entry.value("table", ""), source);
  route.symmetric_rules = rules_from_text(entry.value("symmetric_table", ""), source);
  route.route = entry.at("route");
  route.ranks_per_core = entry.at("ranks_per_core");
  for (const char* key : {"ranks_per_core", "bandwidth_gbs", "local_gbs"}) {
    require(entry.at(key).get<double>() > 0, "{} has a route with {} = {}; it must be more than 0.", source, key,
            entry.at(key).get<double>());
  }
  for (const char* key : {"alpha_us", "overhead_us", "lane_gain"}) {
    require(entry.at(key).get<double>() >= 0, "{} has a route with {} = {}; it cannot be negative.", source, key,
            entry.at(key).get<double>());
  }
  route.cost.alpha = entry.at("alpha_us").get<double>() * 1e-6;
  route.cost.overhead = entry.at("overhead_us").get<double>() * 1e-6;
  route.cost.beta = 1e-9 / entry.at("bandwidth_gbs").get<double>();
  route.cost.gamma = 1e-9 / entry.at("local_gbs").get<double>();
  route.cost.lane_gain = entry.at("lane_gain");
  const double quantize_ns = entry.value("quantize_ns", route.cost.gamma * 1e9 * sizeof(float));
  require(quantize_ns >= 0, "{} has a route with quantize_ns = {}; it cannot be negative.", source, quantize_ns);
  route.cost.quantize = quantize_ns * 1e-9;
  return route;
}

}  // namespace

Tuning Tuning::from_json(const std::string& text, const std::string& source) {
  Tuning tuning;
  try {
    const auto json = nlohmann::json::parse(text);
    check_keys(json, {"routes", "table", "machine"}, source);
    for (const auto& entry : json.at("routes")) tuning.routes.push_back(route_from_json(entry, source));
    tuning.rules = rules_from_text(json.value("table", ""), source);
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::invalid_argument, "{} cannot be read as a tuning file: {}; stretto-perf calibrate writes one.", source,
         json_error_text(error));
  }
  require(!tuning.routes.empty(), "{} has no routes; stretto-perf calibrate writes a tuning file.", source);
  return tuning;
}

}  // namespace stretto
