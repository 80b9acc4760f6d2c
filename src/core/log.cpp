#include "core/log.hpp"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace stretto {

// Never destroyed: streams in static storage may log when they are destroyed.
spdlog::logger& log() {
  static auto* const instance = [] {
    auto* const made = new spdlog::logger("stretto", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_level(spdlog::level::warn);
    return made;
  }();
  return *instance;
}

}  // namespace stretto
