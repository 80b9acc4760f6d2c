#pragma once
#include <string>
#include <type_traits>

#include "interop/nccl/nccl_names.hpp"

// The NCCL library behind the door, as one table of functions. The table is filled, by their pnccl names, from the next
// libnccl that the program has loaded. The tests fill it with a recorder and with threads.
namespace stretto::nccl_door {

// Whether this thread is inside the real library. NCCL calls some of its own functions by their weak names, which lead to
// the door. The door must forward these calls at once: ncclCommInitAll, for example, calls ncclGetUniqueId for an id that
// only NCCL understands.
bool inside_nccl();

class InsideNccl {
 public:
  InsideNccl();
  ~InsideNccl();
  InsideNccl(const InsideNccl&) = delete;
  InsideNccl& operator=(const InsideNccl&) = delete;
};

// Records for ncclGetLastError() that this libnccl does not have a function.
ncclResult_t refuse_missing(const char* name);
[[noreturn]] void end_for_missing(const char* name);  // for functions that return no result code
// Must be called after NCCL itself failed: ncclGetLastError() then returns NCCL's sentence.
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
#define STRETTO_NCCL_FUNCTION(name) \
  RealFunction<decltype(&::pnccl##name)> name{"nccl" #name};  // NOLINT(bugprone-macro-parentheses): a declaration
  STRETTO_NCCL_FUNCTIONS(STRETTO_NCCL_FUNCTION)
#undef STRETTO_NCCL_FUNCTION
};

const RealNccl& real_nccl();
// For tests: replaces the library; null restores the real one.
void use_real_nccl(const RealNccl* other);

}  // namespace stretto::nccl_door
