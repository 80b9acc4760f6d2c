#pragma once
#include <cstdint>
#include <string>

namespace stretto {

// A descriptor of a file that process `pid` of this host has open as `file`; the caller closes it. what: "shared memory",
// for the error message. Throws LinkBroken if the process has ended or has closed it, Error(unavailable) if this
// process may not open it.
int open_peer_file(std::int64_t pid, std::int64_t file, const std::string& what, int rank);

}  // namespace stretto
