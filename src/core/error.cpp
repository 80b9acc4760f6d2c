#include "stretto/error.hpp"

#include <system_error>

#include "core/fail.hpp"

namespace stretto {

const char* name(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::unavailable: return "unavailable";
    case ErrorCode::io: return "io";
    case ErrorCode::timeout: return "timeout";
    case ErrorCode::peer_lost: return "peer_lost";
    case ErrorCode::peer_gave_up: return "peer_gave_up";
    case ErrorCode::internal: return "internal";
  }
  return "unknown";
}

std::string errno_text(int error) { return std::generic_category().message(error); }

}  // namespace stretto
