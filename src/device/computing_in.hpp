#pragma once
#include "stretto/device.hpp"

namespace stretto {

// Makes a stream the thread's computation(), and its device the thread's device, until the object is destroyed.
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
