#include "transport/shm/copy_to_reader.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <numeric>
#include <vector>

namespace stretto {
namespace {

constexpr double near = 4e-9, far = 40e-9;  // seconds a line
void watch(CopyToReader& copy, double seconds_a_line) { copy.watch(seconds_a_line * 4096 / 64, 4096); }
void go_far(CopyToReader& copy) {
  for (int i = 0; i < 4; ++i) watch(copy, far);
}

TEST(CopyToReader, CopiesBytesWhetherOrNotItBypassesTheCaches) {
  for (const bool bypasses : {false, true}) {
    CopyToReader copy;
    if (bypasses) go_far(copy);
    for (const std::size_t bytes : {0, 1, 63, 2047, 2048, 2049, 4096, 16384, 100003}) {
      for (const std::size_t shift : {0, 8, 33}) {
        std::vector<unsigned char> from(bytes + shift), to(bytes + shift + 1, 0xEE);
        std::iota(from.begin(), from.end(), static_cast<unsigned char>(1));
        copy(to.data() + shift, from.data() + shift, bytes);
        EXPECT_TRUE(std::equal(from.begin() + static_cast<long>(shift), from.end(), to.begin() + static_cast<long>(shift)));
        EXPECT_EQ(to.back(), 0xEE) << bytes;
      }
    }
  }
}

TEST(CopyToReader, BypassesTheCachesWhileLinesComeFromAfar) {
  CopyToReader copy;
  for (int i = 0; i < 3; ++i) watch(copy, far);
  watch(copy, near);  // the three were interruptions
  for (int i = 0; i < 3; ++i) watch(copy, far);
  EXPECT_FALSE(copy.bypasses());
  watch(copy, far);
  EXPECT_TRUE(copy.bypasses());

  std::vector<unsigned char> from(4096), to(4096);
  int bypassed = 0;
  for (; copy.bypasses() && bypassed < 100000; ++bypassed) copy(to.data(), from.data(), from.size());
  EXPECT_FALSE(copy.bypasses()) << "the next copy shows whether lines still come from afar";
  EXPECT_GT(bypassed, 100);
  watch(copy, far);
  EXPECT_TRUE(copy.bypasses()) << "after a single slow copy";
}

}  // namespace
}  // namespace stretto
