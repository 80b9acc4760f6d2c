// Tensors as one vector: their own memory where they are neighbours, else a copy of their elements.
#include "stretto/overlap/flat_tensors.hpp"

#include <gmock/gmock.h>

#include "../variables.hpp"

namespace stretto {
namespace {

Tensor counting(std::int64_t count, double from) {
  Tensor result({count}, DType::f32);
  for (std::int64_t i = 0; i < count; ++i) result.set(i, from + static_cast<double>(i));
  return result;
}

TEST(FlatTensors, AreTheirMemoryWhereTheyAreNeighbours) {
  const Tensor memory = counting(12, 0);
  const Tensor elsewhere = Tensor({0}, DType::f32);
  const FlatTensors together({memory.view(2, {2, 2}), elsewhere, memory.view(6, {3})});
  EXPECT_TRUE(together.in_place());
  EXPECT_EQ(together.flat().raw(), memory.view(2, {1}).raw());
  EXPECT_EQ(together.flat().size(), 7);
  together.pack(0, 7);
  together.unpack(0, 7);
  EXPECT_EQ(together.flat().at(6), 8);
  EXPECT_FALSE(FlatTensors({memory.view(0, {2}), memory.view(3, {2})}).in_place());
  EXPECT_FALSE(FlatTensors({memory.view(2, {2}), memory.view(0, {2})}).in_place());
  EXPECT_FALSE(FlatTensors({counting(16, 0), counting(16, 0)}).in_place()) << "also where the heap put them side by side";
}

TEST(FlatTensors, ArePackedAndUnpackedInParts) {
  const Tensor one = counting(3, 10);
  const Tensor other = counting(4, 20);
  const FlatTensors both({one, other});
  both.flat().zero();
  both.pack(2, 3);
  const std::vector<double> expected{0, 0, 12, 20, 21, 0, 0};
  for (std::int64_t i = 0; i < 7; ++i) EXPECT_EQ(both.flat().at(i), expected[static_cast<std::size_t>(i)]) << i;
  for (std::int64_t i = 0; i < 7; ++i) both.flat().set(i, static_cast<double>(i));
  both.unpack(1, 3);
  EXPECT_EQ(one.at(0), 10);
  EXPECT_EQ(one.at(2), 2);
  EXPECT_EQ(other.at(0), 3);
  EXPECT_EQ(other.at(1), 21);
}

TEST(FlatTensors, NameTheElementsOfAPart) {
  const FlatTensors three({counting(3, 0), counting(0, 0), counting(4, 0)});
  using testing::ElementsAre;
  EXPECT_THAT(three.ranges(0, 7), ElementsAre(ElementRange{0, 0, 3}, ElementRange{2, 0, 4}));
  EXPECT_THAT(three.ranges(1, 3), ElementsAre(ElementRange{0, 1, 2}, ElementRange{2, 0, 1}));
  EXPECT_THAT(three.ranges(4, 2), ElementsAre(ElementRange{2, 1, 2}));
  EXPECT_THAT(three.ranges(3, 0), testing::IsEmpty());
}

TEST(FlatTensors, AreOfOneType) {
  EXPECT_THAT(sentence_of([] {
                FlatTensors({Tensor({1}, DType::f32), Tensor({1}, DType::bf16)});
              }),
              testing::HasSubstr("bf16 beside f32"));
  EXPECT_THAT(sentence_of([] { FlatTensors({}); }), testing::HasSubstr("at least one"));
}

}  // namespace
}  // namespace stretto
