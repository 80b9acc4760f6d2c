#pragma once
#include <fmt/format.h>

#include <exception>
#include <string>

#include "interop/nccl/nccl_names.hpp"
#include "stretto/error.hpp"
#include "stretto/stretto.h"

// Results that the door returns by itself: one of NCCL's codes, and a sentence for ncclGetLastError(). The sentence also
// goes to stderr if NCCL_DEBUG asks NCCL to print its warnings.
namespace stretto::nccl_door {

ncclResult_t refuse_with(ncclResult_t result, const std::string& sentence);

template <class... Args>
ncclResult_t refuse(ncclResult_t result, fmt::format_string<Args...> sentence, Args&&... args) {
  return refuse_with(result, fmt::format(sentence, std::forward<Args>(args)...));
}

// Translates a result of the C interface. The codes are the same; the sentence is that of the C interface.
ncclResult_t answer_of(strettoResult_t result);

// Ends an action with an error, where returning a code would take many levels of calls.
class Refusal : public std::exception {
 public:
  Refusal(ncclResult_t result, std::string sentence) : result_(result), sentence_(std::move(sentence)) {}
  ncclResult_t result() const { return result_; }
  const char* what() const noexcept override { return sentence_.c_str(); }

 private:
  ncclResult_t result_;
  std::string sentence_;
};
// Throws Refusal if the C interface has failed.
void check(strettoResult_t result);

// No exception leaves the door. answer() returns the result of action(), or the code of the exception that it throws.
ncclResult_t refuse_current_exception() noexcept;
template <class Action>
ncclResult_t answer(const Action& action) noexcept {
  try {
    return action();
  } catch (...) {
    return refuse_current_exception();
  }
}

// The sentence of this thread's last failed call; null if NCCL itself failed later, or no call failed.
const char* last_sentence();
void keep_last_sentence(const std::string& sentence);  // from a thread that worked for this one

}  // namespace stretto::nccl_door
