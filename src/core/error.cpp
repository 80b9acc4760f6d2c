#include "stretto/error.hpp"

#include <sys/resource.h>

#include <cerrno>
#include <filesystem>
#include <new>
#include <stdexcept>
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

std::string error_sentence(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return fmt::format("Memory has run out ({}); give this process more of it, or ask for less.", error.what());
  }
  if (dynamic_cast<const std::length_error*>(&error) != nullptr) {
    return fmt::format("A size is beyond any memory ({}); give smaller numbers.", error.what());
  }
  if (const auto* const file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    return fmt::format("{}{}{} cannot be used: {}.", file->path1().string(), file->path2().empty() ? "" : " or ",
                       file->path2().string(), file->code().message());
  }
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
    return fmt::format(
        "A thread could not be started ({}); raise the limit of processes (ulimit -u, pids.max), or start fewer.",
        error.what());
  }
  return error.what();
}

bool lacks_descriptors(int error) { return error == EMFILE || error == ENFILE; }

std::string errno_text(int error) {
  std::string text = std::generic_category().message(error);
  if (error == ENFILE) return text + ": raise the machine's limit (sysctl fs.file-max)";
  if (error != EMFILE) return text;
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  return fmt::format("{}: this process may have {}; raise the limit (ulimit -n)", text, descriptors.rlim_cur);
}

}  // namespace stretto
