#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "stretto/communicator.hpp"

namespace stretto {

// Collective. Makes a directory, which gets its name when `write` has written all files: it is called on all ranks with the
// path that the directory has until then. Nothing is left if a rank throws. Throws Error(io) if that cannot be; `what` is
// for messages: "the model".
void write_directory(const Communicator& world, const std::string& directory, const char* what,
                     const std::function<void(const std::filesystem::path& unfinished)>& write);
// Throws Error(io) if the directory exists and is not empty, or cannot be made, which it tries.
void check_new_directory(const std::string& directory, const char* what);

}  // namespace stretto
