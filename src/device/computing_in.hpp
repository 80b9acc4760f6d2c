#pragma once
#include "stretto/device.hpp"

namespace stretto {

// While it lives, this stream is the thread's computation(), and its device the thread's.
class ComputingIn {
 public:
  explicit ComputingIn(Stream stream);
  ~ComputingIn();
  ComputingIn(const ComputingIn&) = delete;
  ComputingIn& operator=(const ComputingIn&) = delete;

 private:
  Stream before_;
};

}  // namespace stretto
