#pragma once
#include <exception>
#include <functional>
#include <memory>

// An exception on its way out of a rank's body destroys streams and works, which wait for their tasks. Those may wait for
// ranks that count on this one: these must hear of the exception, or all wait until a timeout.
namespace stretto {

// A function that tells others of the exception, for the thread that makes this object and as long as it exists.
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
// What is about to end by itself has this time, since the program may catch the exception and go on.
constexpr double seconds_before_notice = 1;
void tell_of_unwinding();  // calls this thread's notices

}  // namespace stretto
