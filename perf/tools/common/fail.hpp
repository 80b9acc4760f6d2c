#pragma once
#include <fmt/ranges.h>

#include "apps/common/fail.hpp"

namespace perf {

using apps::fail, apps::require;

}  // namespace perf
