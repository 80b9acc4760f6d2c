#pragma once
#include <cstddef>
#include <string>

// Files of shared memory without a name, so that nothing is left behind however the process ends: memfd, or an unnamed file
// in STRETTO_SHM_DIR.
namespace stretto {

int open_nameless_file();

// Commits the pages of a range of such a file, which grows to hold them: a machine without memory throws Error(unavailable)
// here instead of sending SIGBUS at the first access. relief: a remedy to name in the error sentence.
void commit_pages(int file, std::size_t offset, std::size_t bytes, const std::string& relief);

}  // namespace stretto
