// A member may be ahead of the others by a number of posts, and no post is lost before all have read it.
#include "transport/shm/board.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace stretto {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// The boards of two ranks that never sleep.
class Boards : public testing::Test {
 protected:
  static std::shared_ptr<PeerSegment> peer(const Segment& segment, int rank) {
    return std::make_shared<PeerSegment>(segment.address(), rank);
  }

  static bool can_post(Board& board, std::size_t bytes, std::uint8_t value) {
    if (!board.may_post(bytes)) return false;
    std::fill_n(board.draft(bytes), bytes, static_cast<std::byte>(value));
    board.post();
    return true;
  }
  // True if the member's post with the number of our last one is there and holds `bytes` times `value`.
  static bool shows(Board& board, int member, std::size_t bytes, std::uint8_t value) {
    const std::byte* const seen = board.seen(member, bytes);
    return seen != nullptr && std::count(seen, seen + bytes, static_cast<std::byte>(value)) == static_cast<long>(bytes);
  }

  Segment one_, other_;
  std::size_t one_at_ = one_.reserve(Board::footprint()).offset;
  std::size_t other_at_ = other_.reserve(Board::footprint()).offset;
  Board root_{{{&one_, nullptr, one_at_}, {nullptr, peer(other_, 1), other_at_}}, 0};
  Board reader_{{{nullptr, peer(one_, 0), one_at_}, {&other_, nullptr, other_at_}}, 1};
};

TEST_F(Boards, AMemberThatWaitsForNobodyIsAheadByAsManyPostsAsAreKept) {
  for (const std::size_t bytes : {Board::line_room, Board::small_room, Board::room_bytes}) {
    const std::uint64_t kept = bytes == Board::room_bytes ? Board::large_slots : Board::slots;
    std::uint64_t ahead = 0;
    while (can_post(root_, bytes, static_cast<std::uint8_t>(ahead))) ++ahead;
    EXPECT_GE(ahead, kept / 2) << bytes;  // after it once had to wait, a member may post at least half of the slots
    EXPECT_LE(ahead, kept) << bytes;
    EXPECT_THAT(root_.behind(bytes), ElementsAre(1));
    // The reader catches up and finds every post, with and without fetch_ahead().
    for (std::uint64_t i = 0; i < ahead; ++i) {
      ASSERT_TRUE(can_post(reader_, 1, 0));
      EXPECT_TRUE(shows(reader_, 0, bytes, static_cast<std::uint8_t>(i))) << bytes << " bytes, post " << i;
      if (i % 2 == 0) reader_.fetch_ahead(0, bytes);
      reader_.saw_all();
    }
    EXPECT_THAT(root_.behind(bytes), IsEmpty());
    ASSERT_TRUE(root_.may_post(bytes));
  }
}

// A rank whose call has more bytes than the others' reads rooms that they never wrote. It gets zeros, not a signal.
TEST_F(Boards, RoomsThatWereNeverWrittenCanBeRead) {
  for (const std::size_t bytes : {Board::small_room, Board::room_bytes}) {
    ASSERT_TRUE(can_post(root_, 8, 1));
    ASSERT_TRUE(can_post(reader_, bytes, 2));
    EXPECT_TRUE(shows(reader_, 0, bytes, 0)) << bytes;
    EXPECT_TRUE(shows(root_, 1, bytes, 2)) << bytes;
  }
}

TEST_F(Boards, AMemberThatIsFarAheadWaitsUntilHalfIsRead) {
  int ahead = 0;
  while (can_post(root_, 8, 1)) ++ahead;
  EXPECT_EQ(ahead, static_cast<int>(Board::slots) - 1);
  int read = 0;
  for (; !root_.may_post(8); ++read) {
    ASSERT_LT(read, ahead);
    ASSERT_TRUE(can_post(reader_, 8, 1));
    reader_.saw_all();
  }
  EXPECT_GE(read, static_cast<int>(Board::slots) / 2);
  EXPECT_LT(read, ahead);  // the member may go on before the last post is read
}

// Of 8 bytes and of so many.
TEST_F(Boards, TwoPostsAtOnceAreTwoForTheReader) {
  for (const std::size_t second : {std::size_t{8}, std::size_t{57}, Board::small_room, Board::room_bytes}) {
    std::uint8_t posted = 0, read = 0;
    while (read < 100) {
      while (posted < 100 && root_.may_post(second, 2)) {
        std::fill_n(root_.draft(8, 1), 8, static_cast<std::byte>(posted++));
        std::fill_n(root_.draft(second, 2), second, static_cast<std::byte>(posted++));
        root_.post(2);
      }
      ASSERT_LE(posted - read, static_cast<int>(Board::slots));
      ASSERT_TRUE(can_post(reader_, 8, 0));
      ASSERT_TRUE(shows(reader_, 0, read % 2 == 0 ? 8 : second, read)) << "post " << int{read} << " of " << second;
      reader_.saw_all();
      ++read;
    }
  }
}

// Large posts have fewer slots; each size class has its own.
TEST_F(Boards, PostsOfAllSizesMayFollowEachOther) {
  constexpr std::size_t sizes[] = {1, Board::line_room, 57, Board::small_room, Board::small_room + 1, Board::room_bytes};
  std::uint8_t posted = 0, read = 0;
  const auto size_of = [&](int number) { return sizes[number * 7 % 6]; };
  while (read < 200) {
    while (posted < 200 && can_post(root_, size_of(posted), posted)) ++posted;
    ASSERT_LT(read, posted);
    ASSERT_TRUE(can_post(reader_, 1, 0));
    ASSERT_TRUE(shows(reader_, 0, size_of(read), read)) << "post " << int{read};
    reader_.saw_all();
    ++read;
  }
}

}  // namespace
}  // namespace stretto
