#pragma once
#include "overlap/offload/unit_file.hpp"
#include "stretto/layers/sharded_parameters.hpp"

namespace stretto {

inline OffloadUse use_of(const UnitFile& file, const ShardedParameters::Options::InFile& where) {
  return {.what = file.name(),
          .directory = where.directory,
          .bytes = file.bytes(),
          .read = file.traffic().read,
          .written = file.traffic().written,
          .bypasses_cache = file.is_direct(),
          .io_uring = file.has_uring()};
}

}  // namespace stretto
