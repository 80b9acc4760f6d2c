#include "collectives/calibration/kept_times.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/fail.hpp"
#include "core/text_file.hpp"
#include "core/whole_number.hpp"

namespace stretto {
namespace {

using Json = nlohmann::ordered_json;

// The median; of an even number the mean of the two in the middle.
double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// The logarithm of how many times as long as in `base` the methods took that both have; none if there are none.
std::optional<double> log_slowdown(const CallTimes& times, const CallTimes& base) {
  std::vector<double> ratios;
  for (const auto& [method, seconds] : times.methods) {
    if (std::isfinite(base.of(method))) ratios.push_back(std::log(seconds / base.of(method)));
  }
  return ratios.empty() ? std::nullopt : std::optional(middle(ratios));
}

// The measurement that has a method in common with the most others; the newest of several.
const CallTimes& base_of(const std::vector<CallTimes>& measurements) {
  const auto comparable = [&](const CallTimes& base) {
    return std::count_if(measurements.begin(), measurements.end(),
                         [&](const CallTimes& times) { return log_slowdown(times, base).has_value(); });
  };
  return *std::max_element(measurements.rbegin(), measurements.rend(),
                           [&](const CallTimes& a, const CallTimes& b) { return comparable(a) < comparable(b); });
}

CallTimes joined_of(const std::vector<CallTimes>& measurements) {
  const CallTimes& base = base_of(measurements);
  std::vector<std::pair<Method, std::vector<double>>> all;  // logarithms of seconds, as if all were as slow as the base
  double all_slowdowns = 0, counted = 0;
  for (const CallTimes& times : measurements) {
    const std::optional<double> slower = log_slowdown(times, base);
    if (!slower) continue;
    all_slowdowns += *slower;
    ++counted;
    for (const MethodTime& time : times.methods) {
      auto place = std::find_if(all.begin(), all.end(), [&](const auto& of) { return of.first == time.method; });
      if (place == all.end()) place = all.insert(place, {time.method, {}});
      place->second.push_back(std::log(time.seconds) - *slower);
    }
  }
  CallTimes joined = base;
  joined.methods.clear();
  for (const auto& [method, values] : all) {
    joined.methods.push_back({method, std::exp(middle(values) + all_slowdowns / counted)});
  }
  return joined;
}

Json json_of(const std::vector<CallTimes>& measurements) {
  const CallTimes& times = measurements.front();
  Json json{{"collective", name(times.request.collective)},
            {"ranks", times.request.size},
            {"count", times.request.count},
            {"bytes", times.bytes},
            {"symmetric", times.symmetric},
            {"us", Json::array()}};
  for (const CallTimes& each : measurements) {
    Json us = Json::object();
    for (const MethodTime& time : each.methods) us[to_string(time.method)] = time.seconds * 1e6;
    json["us"].push_back(us);
  }
  return json;
}

std::vector<CallTimes> call_from(const Json& json) {
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
  std::vector<CallTimes> measurements;
  for (const Json& each : json.at("us")) {
    times.methods.clear();
    for (const auto& [method, us] : each.items()) {
      const auto seconds = us.get<double>() * 1e-6;
      require(seconds > 0 && std::isfinite(seconds), "{} took {} s.", method, seconds);
      times.methods.push_back({method_from_text(method), seconds});
    }
    require(!times.methods.empty(), "A call has no method.");
    measurements.push_back(times);
  }
  require(!measurements.empty() && measurements.size() <= KeptTimes::enough, "A call has {} measurements.",
          measurements.size());
  return measurements;
}

Json json_of(const KeptTimes& times) {
  Json json{{"measurements", times.measurements}, {"calls", Json::array()}};
  for (const std::vector<CallTimes>& call : times.calls) json["calls"].push_back(json_of(call));
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
    const auto same = std::find_if(calls.begin(), calls.end(), [&](const std::vector<CallTimes>& call) {
      return call.front().request == times.request && call.front().symmetric == times.symmetric;
    });
    if (same == calls.end()) {
      calls.push_back({times});
      continue;
    }
    same->push_back(times);
    if (same->size() > enough) same->erase(same->begin());
  }
  std::stable_sort(calls.begin(), calls.end(), [](const auto& a, const auto& b) { return a[0].bytes < b[0].bytes; });
  measurements = std::min(measurements + 1, enough);
}

std::vector<CallTimes> KeptTimes::joined() const {
  std::vector<CallTimes> all;
  all.reserve(calls.size());
  for (const std::vector<CallTimes>& call : calls) all.push_back(joined_of(call));
  return all;
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
