#pragma once
#include <cstdio>
#include <exception>

#include "stretto/error.hpp"

namespace apps {

// The exit status of a program: what body() returns, or `failed` behind one sentence on stderr if it throws.
template <class Body>
int exit_status(const Body& body, int failed = 1) {
  try {
    return body();
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "error: %s\n", stretto::error_sentence(error).c_str());
    return failed;
  }
}

}  // namespace apps
