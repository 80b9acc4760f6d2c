#pragma once
#include "stretto/communicator.hpp"
#include "stretto/job.hpp"

namespace apps {

// While this object lives and its end() has not been called, the ranks' operations have another timeout.
class FirstStepTimeout {
 public:
  FirstStepTimeout(const stretto::Communicator& world, double seconds) : world_(world), later_(world.job().timeout()) {
    if (seconds > 0) world.job().set_timeout(seconds);
  }
  ~FirstStepTimeout() { end(); }
  FirstStepTimeout(const FirstStepTimeout&) = delete;
  FirstStepTimeout& operator=(const FirstStepTimeout&) = delete;
  void end() { world_.job().set_timeout(later_); }

 private:
  const stretto::Communicator& world_;
  const double later_;
};

}  // namespace apps
