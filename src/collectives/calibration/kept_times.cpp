#include "collectives/calibration/kept_times.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/fail.hpp"
#include "core/text_file.hpp"
#include "core/whole_number.hpp"

namespace stretto {
namespace {

using Json = nlohmann::ordered_json;

// The times of `fresh` with the earlier ones, which count as so many measurements.
void join(CallTimes& earlier, int measurements, const CallTimes& fresh) {
  std::vector<MethodTime> joined;
  double slowdown = 0;  // of the fresh measurement: the logarithm of the geometric mean of the ratios
  for (const auto& [method, seconds] : fresh.methods) {
    const double before = earlier.of(method);
    if (!std::isfinite(before)) continue;
    const double ratio = std::log(seconds / before);
    joined.push_back({method, before * std::exp(ratio / (measurements + 1))});
    slowdown += ratio;
  }
  if (joined.empty()) {
    earlier.methods = fresh.methods;
    return;
  }
  slowdown /= static_cast<double>(joined.size());
  const double earlier_part = slowdown / (measurements + 1), fresh_part = earlier_part - slowdown;
  for (const auto& [method, seconds] : earlier.methods) {
    if (!std::isfinite(fresh.of(method))) joined.push_back({method, seconds * std::exp(earlier_part)});
  }
  for (const auto& [method, seconds] : fresh.methods) {
    if (!std::isfinite(earlier.of(method))) joined.push_back({method, seconds * std::exp(fresh_part)});
  }
  earlier.methods = joined;
}

Json json_of(const CallTimes& times) {
  Json us = Json::object();
  for (const MethodTime& time : times.methods) us[to_string(time.method)] = time.seconds * 1e6;
  return {{"collective", name(times.request.collective)},
          {"ranks", times.request.size},
          {"count", times.request.count},
          {"bytes", times.bytes},
          {"symmetric", times.symmetric},
          {"us", us}};
}

CallTimes call_from(const Json& json) {
  constexpr int most = 1 << 30;
  const auto number = [&](const char* key) {
    const std::optional<int> value = whole_number(json.at(key), 1, most);
    require(value.has_value(), "{} is {}.", key, json.at(key).dump());
    return *value;
  };
  CallTimes times;
  times.request = {collective_from_name(json.at("collective")), Algorithm::automatic, 0, number("ranks"), number("count")};
  times.bytes = number("bytes");
  times.symmetric = json.at("symmetric");
  for (const auto& [method, us] : json.at("us").items()) {
    const auto seconds = us.get<double>() * 1e-6;
    require(seconds > 0 && std::isfinite(seconds), "{} took {} s.", method, seconds);
    times.methods.push_back({method_from_text(method), seconds});
  }
  require(!times.methods.empty(), "A call has no method.");
  return times;
}

Json json_of(const KeptTimes& times) {
  Json json{{"measurements", times.measurements}, {"calls", Json::array()}};
  for (const CallTimes& call : times.calls) json["calls"].push_back(json_of(call));
  return json;
}

KeptTimes times_from(const Json& json) {
  try {
    KeptTimes times;
    times.measurements = whole_number(json.at("measurements"), 1, KeptTimes::enough).value_or(0);
    if (times.measurements == 0) return {};
    for (const Json& call : json.at("calls")) times.calls.push_back(call_from(call));
    return times;
  } catch (const Error&) {
  } catch (const Json::exception&) {
  }
  return {};
}

Json content_of(const std::string& path) {
  try {
    Json content = Json::parse(text_of_file(path, path), nullptr, false);
    if (content.is_object()) return content;
  } catch (const Error&) {  // there is none
  }
  return Json::object();
}

}  // namespace

void KeptTimes::add(const std::vector<CallTimes>& fresh) {
  const int before = std::min(measurements, enough - 1);
  for (const CallTimes& times : fresh) {
    const auto same = std::find_if(calls.begin(), calls.end(), [&](const CallTimes& call) {
      return call.request == times.request && call.symmetric == times.symmetric;
    });
    if (same == calls.end()) {
      calls.push_back(times);
    } else {
      join(*same, before, times);
    }
  }
  std::stable_sort(calls.begin(), calls.end(), [](const CallTimes& a, const CallTimes& b) { return a.bytes < b.bytes; });
  measurements = before + 1;
}

std::string KeptTimes::to_json() const { return json_of(*this).dump(); }

KeptTimes KeptTimes::from_json(const std::string& text) { return times_from(Json::parse(text, nullptr, false)); }

KeptTimes KeptTimesFile::read(const std::string& what) const {
  if (path_.empty()) return {};
  const Json content = content_of(path_);
  return content.contains(what) ? times_from(content[what]) : KeptTimes{};
}

void KeptTimesFile::write(const std::string& what, const KeptTimes& times) const {
  if (path_.empty()) return;
  Json content = content_of(path_);
  content[what] = json_of(times);
  write_text_file(path_, content.dump() + '\n');
}

}  // namespace stretto
