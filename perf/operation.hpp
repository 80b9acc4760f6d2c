#pragma once
#include <string>

#include "cases.hpp"
#include "stretto/communicator.hpp"

namespace perf {

// Performs a case once, in the calling thread. All ranks call it.
void perform(const stretto::Communicator& world, const Case& what, const stretto::Method& method, const void* input,
             void* output);
// The method by which that is done: the one that is given, or the library's choice. Throws where it cannot be done.
std::string method_of(const stretto::Communicator& world, const Case& what, const stretto::Method& method, const void* input,
                      void* output);

}  // namespace perf
