#pragma once
#include <atomic>

namespace stretto {

// A shared library that is loaded when one of its functions is first called. Libraries of hundreds of megabytes serve parts
// of Stretto only: a program that does not use the part neither needs the library nor spends time and memory on it.
class LazyLibrary {
 public:
  // soname: as the linker would record it. purpose: who needs it, as the subject of a sentence in the plural.
  constexpr LazyLibrary(const char* soname, const char* purpose) : soname_(soname), purpose_(purpose) {}
  // Throws Error(unavailable) with the loader's reason if the library is missing, or has no such function. Any thread.
  void* function(const char* name);

 private:
  const char* soname_;
  const char* purpose_;
  std::atomic<void*> handle_ = nullptr;  // never closed: functions are called until the process ends
};

// A function of it, called like the function itself: once found, through one pointer.
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

// The soname of a library whose header tells the number of its version: STRETTO_SONAME("cudnn", CUDNN_MAJOR).
#define STRETTO_TEXT_OF(number) #number
#define STRETTO_SONAME(name, major) "lib" name ".so." STRETTO_TEXT_OF(major)

// The body of a function that is declared by the library's header: calls the library's. For what the headers of others call,
// which the linker looks for by name.
#define STRETTO_FORWARD(library, name, ...)                                                \
  static constinit stretto::LazyFunction<decltype(name)> forward{stretto::library, #name}; \
  return forward(__VA_ARGS__)

}  // namespace stretto
