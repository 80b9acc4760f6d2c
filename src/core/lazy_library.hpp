#pragma once
#include <atomic>

namespace stretto {

// A shared library that is loaded when one of its functions is first called. Libraries of hundreds of megabytes serve parts
// of Stretto only: a program that does not use the part neither needs the library nor spends time and memory on it.
class LazyLibrary {
 public:
  // soname: as the linker would record it. purpose: the subject, in the plural, of the sentence "... need(s) the library".
  constexpr LazyLibrary(const char* soname, const char* purpose) : soname_(soname), purpose_(purpose) {}
  // Throws Error(unavailable) with the loader's reason if the library is missing, or has no such function. Any thread.
  void* function(const char* name);

 private:
  const char* soname_;
  const char* purpose_;
  std::atomic<void*> handle_ = nullptr;  // never closed: functions are called until the process ends
};

// A function of a LazyLibrary, called like the function itself. The first call looks it up.
template <class Signature>
class LazyFunction;
template <class Result, class... Arguments>
class LazyFunction<Result(Arguments...)> {
 public:
  constexpr LazyFunction(LazyLibrary& library, const char* name) : library_(library), name_(name) {}
  Result operator()(Arguments... arguments) {
    auto* function = found_.load(std::memory_order_acquire);
    if (function == nullptr) [[unlikely]] {
      function = reinterpret_cast<Result (*)(Arguments...)>(library_.function(name_));
      found_.store(function, std::memory_order_release);
    }
    return function(arguments...);
  }

 private:
  LazyLibrary& library_;
  const char* name_;
  std::atomic<Result (*)(Arguments...)> found_ = nullptr;
};

// Declares a variable that hides, within its namespace, the function of the global namespace that the library's header
// declares.
// NOLINTBEGIN(bugprone-macro-parentheses): a declaration
#define STRETTO_LAZY_FUNCTION(library, name) \
  inline constinit ::stretto::LazyFunction<decltype(::name)> name { library, #name }
// NOLINTEND(bugprone-macro-parentheses)

// The soname of a library whose header defines its major version: STRETTO_SONAME("cudnn", CUDNN_MAJOR).
#define STRETTO_TEXT_OF(number) #number
#define STRETTO_SONAME(name, major) "lib" name ".so." STRETTO_TEXT_OF(major)

// The body of a function that the library's header declares: it calls the library's own. Needed if headers of others call
// the function, since the linker then looks for its name.
#define STRETTO_FORWARD(library, name, ...)                                                \
  static constinit stretto::LazyFunction<decltype(name)> forward{stretto::library, #name}; \
  return forward(__VA_ARGS__)

}  // namespace stretto
