#pragma once
#include <spdlog/logger.h>

namespace stretto {

// Stretto's own log, on stderr: a program's use of spdlog stays as it is.
spdlog::logger& log();

}  // namespace stretto
