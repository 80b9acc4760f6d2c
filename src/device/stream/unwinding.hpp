#pragma once
#include <exception>
#include <functional>
#include <memory>

// An exception that leaves a rank's body destroys streams and works, which wait for their tasks. Those tasks may wait for
// ranks that wait for this one: the other ranks must be told of the exception, or all wait until a timeout.
namespace stretto {

// Registers a function that tells other ranks of the exception, for the thread that constructs it and for its lifetime.
class UnwindingNotice {
 public:
  explicit UnwindingNotice(std::function<void()> tell);
  ~UnwindingNotice();
  UnwindingNotice(const UnwindingNotice&) = delete;
  UnwindingNotice& operator=(const UnwindingNotice&) = delete;

 private:
  friend void tell_of_unwinding();
  struct Function;
  std::shared_ptr<Function> function_;
};

// Whether this thread waits because an exception destroys something.
inline bool unwinding() { return std::uncaught_exceptions() > 0; }
// Destructors wait this long before they call tell_of_unwinding(): tasks that end by then need no notice, and the program
// may catch the exception and go on.
constexpr double seconds_before_notice = 1;
void tell_of_unwinding();  // calls this thread's notices

}  // namespace stretto
