#pragma once
#include <string>
#include <type_traits>

#include "interop/nccl/nccl_names.hpp"

// The library that stands behind the door, as one table: filled from the next libnccl that the program has loaded, by its
// pnccl names; the tests fill it with a recorder and with threads.
namespace stretto::nccl_door {

// Whether this thread is inside the real library. That calls some of its own functions by their weak names, which lead here:
// they have to go back at once (ncclCommInitAll asks ncclGetUniqueId for an id that only NCCL understands).
bool inside_nccl();

class InsideNccl {
 public:
  InsideNccl();
  ~InsideNccl();
  InsideNccl(const InsideNccl&) = delete;
  InsideNccl& operator=(const InsideNccl&) = delete;
};

// Keeps a sentence about a function that this libnccl does not have, for ncclGetLastError().
ncclResult_t refuse_missing(const char* name);
[[noreturn]] void end_for_missing(const char* name);  // where there is no result to say it with
// NCCL has failed by itself: ncclGetLastError() is NCCL's.
void leave_last_error_to_nccl();

template <class Type>
class RealFunction;

template <class Result, class... Parameters>
class RealFunction<Result (*)(Parameters...)> {
 public:
  using Type = Result (*)(Parameters...);
  explicit RealFunction(const char* name) : name_(name) {}

  Result operator()(Parameters... arguments) const {
    if (function == nullptr) {
      if constexpr (std::is_same_v<Result, ncclResult_t>) return refuse_missing(name_);
      end_for_missing(name_);
    }
    const InsideNccl inside;
    const Result result = function(arguments...);
    if constexpr (std::is_same_v<Result, ncclResult_t>) {
      if (result != ncclSuccess && result != ncclInProgress) leave_last_error_to_nccl();
    }
    return result;
  }
  const char* name() const { return name_; }

  Type function = nullptr;

 private:
  const char* name_;
};

struct RealNccl {
#define STRETTO_NCCL_FUNCTION(name) RealFunction<decltype(&::pnccl##name)> name{"nccl" #name};
  STRETTO_NCCL_FUNCTIONS(STRETTO_NCCL_FUNCTION)
#undef STRETTO_NCCL_FUNCTION
};

const RealNccl& real_nccl();
// For tests: another one takes its place; null: the real one again.
void use_real_nccl(const RealNccl* other);

}  // namespace stretto::nccl_door
