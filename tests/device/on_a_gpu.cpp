// Linked into programs that test a GPU instead of the host.
#include "device/test_device.hpp"

namespace {

[[maybe_unused]] const bool told = [] {
  stretto::tested_device = stretto::Device::cuda;
  return true;
}();

}  // namespace
