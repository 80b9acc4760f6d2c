// In a program that tests a GPU, in place of the host.
#include "device/test_device.hpp"

namespace {

[[maybe_unused]] const bool told = [] {
  stretto::tested_device = stretto::Device::cuda;
  return true;
}();

}  // namespace
