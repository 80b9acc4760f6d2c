#pragma once
#include "oracle.hpp"
#include "stretto/device.hpp"

namespace stretto {

// A problem's buffers in a GPU's memory.
class GpuBuffers {
 public:
  GpuBuffers(const oracle::Problem& problem, int rank, bool in_place)
      : here_(problem, rank, in_place), there_({static_cast<std::int64_t>(here_.memory().size())}, DType::u8, Device::cuda) {
    there_.copy_from_host(here_.memory().data());
  }
  Call call() const {
    Call call = here_.call_in(static_cast<std::byte*>(there_.raw()));
    call.keep_alive = {there_};
    return call;
  }
  std::string fault() {
    there_.copy_to_host(here_.memory().data());
    return here_.fault();
  }

 private:
  oracle::Buffers here_;
  Tensor there_;
};

}  // namespace stretto
