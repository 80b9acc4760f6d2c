#include "stretto/layers/sequence.hpp"

#include <gtest/gtest.h>

#include <set>

#include "support/error.hpp"

namespace stretto {
namespace {

using TokenPlaces = std::vector<std::int64_t>;

TEST(SequenceDivision, PutsTokensWhereTheLayoutSays) {
  EXPECT_EQ((SequenceDivision{2, 1, SequenceLayout::zigzag}.positions(8, 0, 0)), (TokenPlaces{0, 1, 6, 7}));
  EXPECT_EQ((SequenceDivision{2, 1, SequenceLayout::zigzag}.positions(8, 1, 0)), (TokenPlaces{2, 3, 4, 5}));
  EXPECT_EQ((SequenceDivision{2, 2, SequenceLayout::zigzag}.positions(8, 0, 1)), (TokenPlaces{6, 7}));
  EXPECT_EQ((SequenceDivision{2, 1, SequenceLayout::contiguous}.positions(8, 1, 0)), (TokenPlaces{4, 5, 6, 7}));
  EXPECT_EQ((SequenceDivision{4, 1, SequenceLayout::striped}.positions(8, 3, 0)), (TokenPlaces{3, 7}));
  EXPECT_EQ((SequenceDivision{1, 4, SequenceLayout::zigzag}.positions(8, 0, 2)), (TokenPlaces{4, 5}));
}

TEST(SequenceDivision, EveryTokenLiesOnOneRank) {
  for (const SequenceLayout layout : {SequenceLayout::zigzag, SequenceLayout::contiguous, SequenceLayout::striped}) {
    for (int ring = 1; ring <= 6; ++ring) {
      for (int ulysses = 1; ulysses <= 4; ++ulysses) {
        const SequenceDivision division{ring, ulysses, layout};
        const std::int64_t sequence = 2 * division.multiple();
        division.check(sequence);
        std::multiset<std::int64_t> found;
        for (int r = 0; r < ring; ++r) {
          for (int u = 0; u < ulysses; ++u) {
            for (const std::int64_t position : division.positions(sequence, r, u)) found.insert(position);
          }
        }
        ASSERT_EQ(static_cast<std::int64_t>(found.size()), sequence);
        std::int64_t expected = 0;
        for (const std::int64_t position : found) EXPECT_EQ(position, expected++);
      }
    }
  }
}

TEST(SequenceDivision, SaysWhatDoesNotDivide) {
  EXPECT_EQ(sentence_of([] {
              SequenceDivision{4, 1}.check(12);
            }),
            "A sequence of 12 tokens does not divide over 4 ring (zigzag) x 1 ulysses ranks; choose a multiple of 8.");
  EXPECT_EQ(sentence_of([] {
              SequenceDivision{4, 1, SequenceLayout::striped}.check(3);
            }),
            "A sequence of 3 tokens does not divide over 4 ring (striped) x 1 ulysses ranks; choose a multiple of 4.");
  EXPECT_EQ(sentence_of([] {
              SequenceDivision{2, 3}.check(8);
            }),
            "A sequence of 8 tokens does not divide over 2 ring (zigzag) x 3 ulysses ranks; choose a multiple of 12.");
  EXPECT_EQ(sentence_of([] { SequenceDivision{2, 2}.check(4); }), "");
  EXPECT_EQ(sentence_of([] { sequence_layout_from_name("round"); }),
            "'round' is no layout of a sequence; choose zigzag, contiguous or striped.");
  EXPECT_STREQ(name(sequence_layout_from_name("striped")), "striped");
}

}  // namespace
}  // namespace stretto
