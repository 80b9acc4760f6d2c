#pragma once
#include <fmt/format.h>

#include <exception>
#include <string>

#include "interop/nccl/nccl_names.hpp"
#include "stretto/error.hpp"
#include "stretto/stretto.h"

// What the door answers by itself: one of NCCL's codes, and a sentence for ncclGetLastError(). The sentence also goes to
// stderr where NCCL_DEBUG asks NCCL to say what is wrong.
namespace stretto::nccl_door {

ncclResult_t refuse_with(ncclResult_t result, const std::string& sentence);

template <class... Args>
ncclResult_t refuse(ncclResult_t result, fmt::format_string<Args...> sentence, Args&&... args) {
  return refuse_with(result, fmt::format(sentence, std::forward<Args>(args)...));
}

// The C interface has NCCL's codes and a sentence of its own.
ncclResult_t answer_of(strettoResult_t result);

// The error with which an action ends where a return would be many calls away.
class Refusal : public std::exception {
 public:
  Refusal(ncclResult_t result, std::string sentence) : result_(result), sentence_(std::move(sentence)) {}
  ncclResult_t result() const { return result_; }
  const char* what() const noexcept override { return sentence_.c_str(); }

 private:
  ncclResult_t result_;
  std::string sentence_;
};
// Throws it where the C interface has failed.
void check(strettoResult_t result);

// No exception leaves the door. action() gives the result.
ncclResult_t refuse_current_exception() noexcept;
template <class Action>
ncclResult_t answer(const Action& action) noexcept {
  try {
    return action();
  } catch (...) {
    return refuse_current_exception();
  }
}

// The sentence of this thread's last call that failed; null where NCCL itself failed later, or nothing did.
const char* last_sentence();
void keep_last_sentence(const std::string& sentence);  // of what another thread did for this one

}  // namespace stretto::nccl_door
