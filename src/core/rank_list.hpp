#pragma once
#include <string>
#include <vector>

namespace stretto {

// Ascending ranks in a sentence: "rank 3", "ranks 0 to 2 and 5".
std::string rank_list(const std::vector<int>& ranks);

}  // namespace stretto
