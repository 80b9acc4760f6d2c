#pragma once
#include <cstddef>
#include <string>

// Files of shared memory that have no name, so that nothing is left behind however the process ends: memfd, or a nameless
// file in STRETTO_SHM_DIR.
namespace stretto {

int open_nameless_file();

// Gets the pages of a range of such a file now (it grows to hold them): a machine without memory says so here, not with
// SIGBUS at the first touch. relief: what else could be done about it, a part of that sentence.
void commit_pages(int file, std::size_t offset, std::size_t bytes, const std::string& relief);

}  // namespace stretto
