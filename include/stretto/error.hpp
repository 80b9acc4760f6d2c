#pragma once
#include <exception>
#include <stdexcept>
#include <string>

#include "stretto/export.hpp"

namespace stretto {

// The kind of an error, and the caller's reaction to it.
enum class ErrorCode {
  invalid_argument,  // the call or the configuration is wrong: change it; the communicator stays usable
  unavailable,       // a resource of the machine is missing (memory, port, device): provide it and start again
  io,                // a file could not be read or written; an existing file is unchanged
  timeout,           // a peer did not answer within the timeout (STRETTO_TIMEOUT): the communicator is no longer usable
  peer_lost,         // another rank died: the communicator is no longer usable
  peer_gave_up,      // another rank stopped and reported its error: the communicator is no longer usable
  internal,          // a bug in Stretto
};

STRETTO_API const char* name(ErrorCode code);

// The only exception type that Stretto itself throws. what() is one sentence that contains the values involved.
class STRETTO_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  ErrorCode code() const { return code_; }
  // Whether another rank is the reason: Job::shrink() may then help.
  bool is_of_another_rank() const {
    return code_ == ErrorCode::timeout || code_ == ErrorCode::peer_lost || code_ == ErrorCode::peer_gave_up;
  }

 private:
  ErrorCode code_;
};

// Returns one sentence for any exception that ends a program: an Error's what(), or the meaning of an exception of the
// standard library, whose what() says no more than "std::bad_alloc". launch() and run() print it.
STRETTO_API std::string error_sentence(const std::exception& error);

}  // namespace stretto
