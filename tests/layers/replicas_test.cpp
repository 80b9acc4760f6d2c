// A bit that changes in one copy of a parameter is found, with its tensor and rank.
#include "stretto/layers/replicas.hpp"

#include <gmock/gmock.h>

#include "stretto/layers/adamw.hpp"
#include "two_parameters.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

// What each rank throws after a step and the corruption of `name` on `victims`.
std::vector<std::string> sentences_after(const MeshShape& shape, ZeroStage zero, const std::string& hit,
                                         const std::vector<int>& victims) {
  std::vector<std::string> sentences(static_cast<std::size_t>(shape.ranks()));
  run_threads(static_cast<int>(shape.ranks()), [&](const Communicator& world) {
    const Mesh mesh(world, shape);
    Parameters parameters;
    add_parameters(parameters, mesh);
    ShardedParameters sharded(parameters, mesh, {.zero = zero, .unit_bytes = 64});
    sharded.initialise(3);
    AdamW optimizer(sharded);
    sum_gradients(sharded, parameters,
                  [](const std::string& of, std::int64_t i) { return random_normal(3, of, static_cast<std::uint64_t>(i)); });
    optimizer.step(1e-2, 1);
    sharded.wait_for_values();
    for (const auto& parameter : parameters.all()) {
      const bool is_hit = parameter->name == hit && std::find(victims.begin(), victims.end(), world.rank()) != victims.end();
      if (is_hit) parameter->value.set(2, parameter->value.at(2) + 1e-3 * (1 + world.rank()));
    }
    std::string& sentence = sentences[static_cast<std::size_t>(world.rank())];
    try {
      check_replicas(sharded);
    } catch (const Error& error) {
      const bool reports = world.rank() == 0 && error.code() != ErrorCode::peer_gave_up;
      sentence = (reports ? "" : std::string(name(error.code())) + ": ") + error.what();
    }
    world.barrier(Stream::inline_()).wait();
  });
  return sentences;
}

TEST(Replicas, AreTheSameAfterAStep) {
  for (const ZeroStage zero : {ZeroStage::none, ZeroStage::optimizer, ZeroStage::gradients}) {
    for (const MeshShape& shape : {MeshShape{{Axis::data, 3}}, MeshShape{{Axis::tensor, 2}, {Axis::data, 2}},
                                   MeshShape{{Axis::ring, 2}, {Axis::data, 2}}}) {
      for (const std::string& sentence : sentences_after(shape, zero, "", {})) EXPECT_EQ(sentence, "");
    }
  }
}

TEST(Replicas, NameTheRankThatDiffersFromMost) {
  const auto sentences = sentences_after({{Axis::data, 4}}, ZeroStage::none, "replicated", {2});
  for (const std::string& sentence : sentences) {
    EXPECT_THAT(sentence, HasSubstr("replicated on rank 2 differs from that on ranks 0, 1 and 3"));
  }
  EXPECT_THAT(sentences[0], testing::StartsWith("replicated"));
  EXPECT_THAT(sentences[1], testing::StartsWith("peer_gave_up"));
}

TEST(Replicas, OfATensorParallelModelAreThoseOfASlice) {
  const MeshShape shape{{Axis::tensor, 2}, {Axis::data, 3}};
  EXPECT_THAT(sentences_after(shape, ZeroStage::optimizer, "divided", {5})[0],
              HasSubstr("divided on rank 5 differs from that on ranks 1 and 3"));
  EXPECT_THAT(sentences_after(shape, ZeroStage::optimizer, "divided", {4, 5})[0], HasSubstr("(and 1 more)"));
}

TEST(Replicas, OfTwoThatDifferNeitherIsNamedGuilty) {
  EXPECT_THAT(sentences_after({{Axis::data, 2}}, ZeroStage::gradients, "divided", {1})[0],
              HasSubstr("divided differs between ranks 0 and 1"));
}

TEST(Replicas, AreRefusedWhereThereAreNone) {
  EXPECT_THAT(sentences_after({{Axis::tensor, 2}}, ZeroStage::none, "", {})[1], HasSubstr("cannot be compared"));
  EXPECT_THAT(sentences_after({{Axis::data, 2}}, ZeroStage::values, "", {})[0], HasSubstr("ZeRO stage 3"));
}

}  // namespace
}  // namespace stretto
