#pragma once
#include <cstdint>
#include <vector>

namespace apps {

// Numbers of documents, which share a sequence.
using Pack = std::vector<std::int64_t>;

// Puts documents of so many tokens, each at most `sequence`, into sequences: one after the other into the sequence where it
// leaves the least room, of several the first, or into a new one. The same for the same lengths.
std::vector<Pack> packed(const std::vector<std::int64_t>& lengths, std::int64_t sequence);

}  // namespace apps
