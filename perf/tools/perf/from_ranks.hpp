#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "stretto/communicator.hpp"

namespace perf {

// Runs body on new processes and returns rank 0's result; empty if a rank failed, after launch() has printed the reason.
// nproc 0: a launcher has started this process, and what other ranks than rank 0 get is null. Must be called before this
// process has threads.
std::optional<nlohmann::ordered_json> from_ranks(
    int nproc, const std::function<nlohmann::ordered_json(const stretto::Communicator&)>& body);

}  // namespace perf
