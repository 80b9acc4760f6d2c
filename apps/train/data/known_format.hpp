#pragma once
#include <string>

#include "apps/train/data/data_file.hpp"

namespace apps {

// Throws Error(io) if the file begins as one that is packed or holds a table, an archive or tensors does, whose bytes would
// be trained on without a word. The sentence says which format it is and how to turn it into what is read. anyway: the flag
// that lets all files pass.
void refuse_known_format(const DataFile& file, const std::string& anyway);

}  // namespace apps
