// Loops that add arrays in several places of memory and write the sum into several others.
#pragma once
#include <cstdint>
#include <vector>

#include "processes.hpp"

namespace host_limit {

constexpr int line_floats = line_bytes / sizeof(float);

// The sum of the inputs goes into each of the outputs, of which there are as many: of one, a copy.
struct Sum {
  const float* inputs[most_ranks];
  float* outputs[most_ranks];
  std::int64_t count;  // whole lines
};
using Loop = void (*)(const Sum&);

// Loops for sums of 1, 2, 4 or 8 inputs, which differ in speed: by ordinary stores, and by stores that bypass the caches.
std::vector<Loop> loops_for(int inputs);

}  // namespace host_limit
