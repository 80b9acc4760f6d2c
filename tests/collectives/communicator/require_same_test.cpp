#include "stretto/require_same.hpp"

#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "stretto/error.hpp"
#include "stretto/launch.hpp"

namespace stretto {
namespace {

// The sentence and the code that each of the ranks throws; "" and internal if it throws none.
std::vector<std::pair<std::string, ErrorCode>> thrown_by(int ranks,
                                                         const std::function<std::vector<NamedValue>(int)>& values) {
  std::vector<std::pair<std::string, ErrorCode>> result(static_cast<std::size_t>(ranks), {"", ErrorCode::internal});
  run_threads(ranks, [&](const Communicator& world) {
    try {
      require_same(world, values(world.rank()));
    } catch (const Error& error) {
      result[static_cast<std::size_t>(world.rank())] = {error.what(), error.code()};
    }
    world.barrier(Stream::inline_()).wait();  // the communicator stays usable
  });
  return result;
}

TEST(RequireSame, SameValuesPass) {
  for (const int ranks : {1, 2, 5}) {
    const auto same = [](int) { return std::vector<NamedValue>{{"--lr", "0.1"}, {"--text", ""}}; };
    for (const auto& [sentence, code] : thrown_by(ranks, same)) EXPECT_EQ(sentence, "");
  }
}

TEST(RequireSame, NamesValuesAndRanks) {
  const auto values = [](int rank) {
    std::vector<NamedValue> given{{"--lr", rank == 3 ? "0.2" : "0.1"}, {"--seed", "1"}};
    if (rank != 1) given.push_back({"--tp", rank == 4 ? "2" : ""});
    return given;
  };
  const auto thrown = thrown_by(5, values);
  for (std::size_t rank = 0; rank < thrown.size(); ++rank) {
    EXPECT_EQ(thrown[rank].first,
              "--lr is '0.1' on ranks 0 to 2 and 4, '0.2' on rank 3; --tp is '' on ranks 0, 2 and 3, missing on rank 1, "
              "'2' on rank 4; give all ranks the same.");
    EXPECT_EQ(thrown[rank].second, rank == 0 ? ErrorCode::invalid_argument : ErrorCode::peer_gave_up);
  }
}

TEST(RequireSame, TellsApartWhatOnlyCutsDifferently) {
  EXPECT_NE(thrown_by(2,
                      [](int rank) {
                        return std::vector<NamedValue>{{rank == 0 ? "ab" : "a", rank == 0 ? "c" : "bc"}};
                      })[1]
                .first,
            "");
}

TEST(RequireSame, LongListsAreCut) {
  const auto values = [](int rank) {
    std::vector<NamedValue> given;
    for (int i = 0; i < 20; ++i) given.push_back({"value" + std::to_string(i), std::to_string(i * rank)});
    return given;
  };
  EXPECT_NE(thrown_by(2, values)[0].first.find("and 11 more differ"), std::string::npos);
}

TEST(BroadcastTexts, GivesAllTheTextsOfRank0) {
  using Texts = std::map<std::string, std::string>;
  const std::vector<Texts> all{{}, {{"empty", ""}, {"long", std::string(100'000, 'x')}}};
  run_threads(3, [&](const Communicator& world) {
    for (const Texts& texts : all) {
      Texts mine = world.rank() == 0 ? texts : Texts{{"mine", "goes"}};
      broadcast_texts(world, mine, "test");
      EXPECT_EQ(mine, texts);
      std::string text = world.rank() == 0 ? "of rank 0" : "";
      broadcast_text(world, text, "test");
      EXPECT_EQ(text, "of rank 0");
    }
  });
}

}  // namespace
}  // namespace stretto
