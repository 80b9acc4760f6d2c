#include "interop/nccl/serving.hpp"

#include <fmt/format.h>

#include "stretto/error.hpp"
#include "stretto/settings.hpp"

namespace stretto::nccl_door {
namespace {

constexpr Collective servable[] = {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                   Collective::all_to_all, Collective::broadcast,      Collective::reduce,
                                   Collective::gather,     Collective::scatter};

// STRETTO_NCCL_SERVE=auto: serves the collectives on which Stretto's other settings would otherwise have no effect.
Rules automatic() {
  Rules rules;
  for (const Collective collective : servable) {
    if (!setting("STRETTO_ALGO").empty()) {
      rules[collective] = "STRETTO_ALGO is set";
    } else if (reduces(collective) && setting("STRETTO_DETERMINISTIC") == "1") {
      rules[collective] = "STRETTO_DETERMINISTIC is set";
    }
  }
  return rules;
}

}  // namespace

Rules rules_from_settings() {
  const std::string text = setting("STRETTO_NCCL_SERVE");
  if (text == "auto") return automatic();
  Rules rules;
  if (text == "none") return rules;
  const std::string why = "STRETTO_NCCL_SERVE=" + text;
  if (text == "all") {
    for (const Collective collective : servable) rules[collective] = why;
    return rules;
  }
  for (std::size_t at = 0, comma = 0; comma != std::string::npos; at = comma + 1) {
    comma = text.find(',', at);
    const std::string one = text.substr(at, comma == std::string::npos ? comma : comma - at);
    const Collective collective = collective_from_name(one);
    bool known = false;
    for (const Collective each : servable) known = known || each == collective;
    if (!known) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("STRETTO_NCCL_SERVE={} names {}, which stays NCCL's; give collectives, auto, all or none.",
                              text, one));
    }
    rules[collective] = why;
  }
  return rules;
}

std::string text_of(const Rules& rules) {
  std::string text;
  for (const auto& [collective, why] : rules) text += fmt::format("{}{}", text.empty() ? "" : ",", name(collective));
  return text.empty() ? "none" : text;
}

}  // namespace stretto::nccl_door
