#include "transport/link_setting.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

#include "core/fail.hpp"

namespace stretto {
namespace {

constexpr const char* example = "intra=50GB/s,1us;inter=1Gb/s,20us";

using UnitFactor = std::pair<std::string_view, double>;
constexpr std::array<UnitFactor, 4> rates{{{"Gb/s", 1e9 / 8}, {"Mb/s", 1e6 / 8}, {"GB/s", 1e9}, {"MB/s", 1e6}}};
constexpr std::array<UnitFactor, 2> times{{{"us", 1e-6}, {"ms", 1e-3}}};

// The value of a number and its unit with nothing else around them; negative if the text is something else.
template <class Units>
double measured(std::string_view text, const Units& units) {
  double number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number)) return -1;
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  for (const auto& [name, factor] : units) {
    if (unit == name) return number * factor;
  }
  return -1;
}

LinkSpeed speed_of(std::string_view text, std::string_view part, const char* setting, const char* form) {
  const std::size_t comma = text.find(',');
  require(comma != std::string_view::npos, "'{}' in {} needs a bandwidth and a latency; write it like {}.", part, setting,
          form);
  const LinkSpeed speed{measured(text.substr(0, comma), rates), measured(text.substr(comma + 1), times)};
  require(speed.bytes_per_second >= 1 && speed.bytes_per_second <= 1e15,
          "'{}' in {} is no bandwidth; give a number above 0 with Gb/s, Mb/s, GB/s or MB/s, like {}.", text.substr(0, comma),
          setting, form);
  require(speed.latency >= 0 && speed.latency <= 3600,
          "'{}' in {} is no latency; give a number from 0 with us or ms, like {}.", text.substr(comma + 1), setting, form);
  return speed;
}

}  // namespace

LinkSetting link_setting_from_text(const std::string& text) {
  LinkSetting setting;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t end = rest.find(';');
    const std::string_view part = rest.substr(0, end);
    const std::size_t equals = part.find('=');
    const std::string_view name = part.substr(0, equals);
    require(equals != std::string_view::npos && (name == "intra" || name == "inter"),
            "'{}' in STRETTO_LINKS is neither intra=... nor inter=...; write it like {}.", part, example);
    std::optional<LinkSpeed>& speed = name == "intra" ? setting.intra : setting.inter;
    require(!speed, "STRETTO_LINKS='{}' gives {} twice.", text, name);
    speed = speed_of(part.substr(equals + 1), part, "STRETTO_LINKS", example);
    require(end != rest.size() - 1, "STRETTO_LINKS='{}' ends with ';'; leave that out.", text);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  return setting;
}

LinkSpeed network_speed_from_text(const std::string& text) { return speed_of(text, text, "STRETTO_NETWORK", "10Gb/s,20us"); }

}  // namespace stretto
