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

constexpr double disturbed = 3;  // times as slow, beside the other methods, as in another measurement

// Of an odd number the median.
double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// The times of `fresh` with the earlier ones.
void join(CallTimes& earlier, const CallTimes& fresh) {
  const int measurements = std::min(earlier.measurements, KeptTimes::enough - 1);
  std::vector<double> ratios;  // logarithms
  for (const auto& [method, seconds] : fresh.methods) {
    const double before = earlier.of(method);
    if (std::isfinite(before)) ratios.push_back(std::log(seconds / before));
  }
  earlier.measurements = measurements + 1;
  if (ratios.empty()) {
    earlier.methods = fresh.methods;
    return;
  }
  const double slowdown = middle(ratios);  // of the fresh measurement
  const double part = 1.0 / (measurements + 1);
  std::vector<MethodTime> joined;
  for (const auto& [method, seconds] : fresh.methods) {
    const double before = earlier.of(method), undone = seconds * std::exp(-slowdown);
    const double ratio = std::isfinite(before) ? std::log(undone / before) : 0;
    const bool counts_alone = !std::isfinite(before) || ratio < -std::log(disturbed);
    const bool counts_nothing = ratio > std::log(disturbed);
    joined.push_back({method, counts_alone ? undone : before * std::exp(counts_nothing ? 0 : part * ratio)});
  }
  for (const MethodTime& time : earlier.methods) {
    if (!std::isfinite(fresh.of(time.method))) joined.push_back(time);
  }
  for (MethodTime& time : joined) time.seconds *= std::exp(part * slowdown);
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
          {"measurements", times.measurements},
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
  times.measurements = number("measurements");
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
  for (const CallTimes& times : fresh) {
    const auto same = std::find_if(calls.begin(), calls.end(), [&](const CallTimes& call) {
      return call.request == times.request && call.symmetric == times.symmetric;
    });
    if (same == calls.end()) {
      calls.push_back(times);
    } else {
      join(*same, times);
    }
  }
  std::stable_sort(calls.begin(), calls.end(), [](const CallTimes& a, const CallTimes& b) { return a.bytes < b.bytes; });
  measurements = std::min(measurements + 1, enough);
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
