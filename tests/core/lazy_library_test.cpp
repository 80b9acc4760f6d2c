#include "core/lazy_library.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "support/error.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(LazyLibrary, AFunctionIsCalledAsIfItWereLinked) {
  LazyLibrary library("libm.so.6", "Cosines");
  LazyFunction<double(double)> cosine(library, "cos");
  EXPECT_EQ(cosine(0.5), std::cos(0.5));
  EXPECT_EQ(cosine(0.25), std::cos(0.25));
}

TEST(LazyLibrary, AMissingLibraryIsNamedWithItsUseAndTheLoadersReasonAtEveryCall) {
  LazyLibrary library("libstretto-has-no-such.so.7", "Products of nothing");
  LazyFunction<void()> multiply(library, "multiply_nothing");
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT(sentence_of(std::ref(multiply)),
                AllOf(HasSubstr("Products of nothing need libstretto-has-no-such.so.7, which cannot be loaded"),
                      HasSubstr("No such file"), HasSubstr("install it")));
  }
}

TEST(LazyLibrary, AMissingFunctionIsNamedWithItsLibrary) {
  LazyLibrary library("libm.so.6", "Cosines");
  LazyFunction<void()> function(library, "stretto_has_no_such");
  EXPECT_THAT(sentence_of(std::ref(function)), AllOf(HasSubstr("libm.so.6"), HasSubstr("no stretto_has_no_such")));
}

}  // namespace
}  // namespace stretto
