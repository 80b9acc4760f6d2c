// The ends of buckets.
#include "overlap/bucket_cut.hpp"

#include <gmock/gmock.h>

namespace stretto {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::size_t> cut(const std::vector<std::size_t>& sizes, std::size_t bytes, std::size_t first_bytes) {
  std::vector<GradientSize> gradients;
  for (const std::size_t size : sizes) gradients.push_back({size, DType::f32});
  return cut_into_buckets(gradients, bytes, first_bytes);
}

TEST(CutIntoBuckets, GivesRunsOfAtLeastTheirSizeBetweenTwoSmallOnes) {
  EXPECT_THAT(cut({}, 100, 100), IsEmpty());
  EXPECT_THAT(cut({100, 100, 100, 100}, 1, 1), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(cut({100, 100, 100, 100}, 100, 100), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(cut({100, 100, 100, 100}, 101, 101), ElementsAre(2, 3, 4));
  EXPECT_THAT(cut({100, 100, 100, 100}, 1000, 1000), ElementsAre(4));
  EXPECT_THAT(cut({100, 100, 100, 100}, 1000, 1), ElementsAre(1, 3, 4));
  EXPECT_THAT(cut({100, 100, 100, 100, 100, 100, 100}, 200, 100), ElementsAre(1, 3, 5, 6, 7));
  EXPECT_THAT(cut({100, 1, 1, 1000, 1, 9}, 400, 50), ElementsAre(1, 4, 6));
  EXPECT_THAT(cut({100, 1, 1, 1000}, 400, 50), ElementsAre(1, 3, 4));  // a large last gradient stays alone
  EXPECT_THAT(cut(std::vector<std::size_t>(16, 100), 400, 100), ElementsAre(1, 5, 9, 13, 15, 16));  // smaller and smaller
  EXPECT_THAT(cut({5}, 1, 1), ElementsAre(1));
  EXPECT_THAT(cut({0, 0, 0}, 1, 1), ElementsAre(3));
}

TEST(CutIntoBuckets, KeepsTypesApartAndEndsWhereItIsTold) {
  const GradientSize narrow{10, DType::bf16};
  const GradientSize wide{10, DType::f32};
  const GradientSize end{10, DType::f32, true};
  EXPECT_THAT(cut_into_buckets({narrow, narrow, wide, wide, narrow}, 1000, 1000), ElementsAre(2, 4, 5));
  EXPECT_THAT(cut_into_buckets({wide, wide, wide, wide}, 1000, 1000), ElementsAre(4));
  EXPECT_THAT(cut_into_buckets({wide, end, wide, wide}, 1000, 1000), ElementsAre(2, 4));
  EXPECT_THAT(cut_into_buckets({end, wide, end, end}, 1000, 1), ElementsAre(1, 3, 4));
}

}  // namespace
}  // namespace stretto
