#pragma once
#include <spdlog/logger.h>

namespace stretto {

// Stretto's own log, on stderr. It leaves the program's own use of spdlog alone.
spdlog::logger& log();

}  // namespace stretto
