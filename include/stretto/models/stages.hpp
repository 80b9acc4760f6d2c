#pragma once
#include <cstdint>
#include <vector>

#include "stretto/export.hpp"

namespace stretto {

// The number of transformer blocks in each of the consecutive parts into which a pipeline cuts a model, so that stages have
// floating-point operations as even as possible, and then parts. `stages`: of each part (Schedule::stage_of). The last part
// also has the head, which costs as much as `head_in_blocks` blocks. Every part has at least one block. Of equal places,
// later parts take a block, since earlier stages keep the activations of more microbatches. Throws Error(invalid_argument)
// if there are more parts than blocks.
STRETTO_API std::vector<std::int64_t> divide_blocks(std::int64_t blocks, const std::vector<int>& stages,
                                                    double head_in_blocks);

}  // namespace stretto
