#pragma once
#include <cstdint>
#include <string>

#include "stretto/export.hpp"

namespace stretto {

// Makes a scratch file of so many bytes in the directory, as state in files has it (ShardedParameters::Options::Offload),
// and reads one half while it writes the other. Returns bytes read and written per second: "file_gbs" of a TrainingCluster,
// if all ranks of a machine call it at the same time. Takes bytes of memory. Throws Error(io) that names the directory for
// one that cannot hold the file. Any thread may call it.
STRETTO_API double measured_file_rate(const std::string& directory, std::int64_t bytes = std::int64_t{64} << 20);

}  // namespace stretto
