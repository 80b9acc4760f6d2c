#include "stretto/layers/mesh.hpp"

#include <gmock/gmock.h>

#include <numeric>

#include "stretto/stretto.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

TEST(Mesh, IsAGridWithNeighboursInOneTensorGroup) {
  run_threads(6, [](const Communicator& world) {
    const Mesh mesh(world, {{Axis::tensor, 2}, {Axis::data, 3}});
    EXPECT_EQ(mesh.size(Axis::data), 3);
    EXPECT_EQ(mesh.size(Axis::tensor), 2);
    EXPECT_EQ(mesh.size(Axis::pipeline), 1);
    EXPECT_EQ(mesh.rank(Axis::data), world.rank() / 2);
    EXPECT_EQ(mesh.rank(Axis::tensor), world.rank() % 2);
    EXPECT_EQ(mesh.over(Axis::data).name(), "dp");
    EXPECT_EQ(mesh.over(Axis::tensor).name(), "tp");
    EXPECT_EQ(mesh.over(Axis::ring).size(), 1);
  });
}

// The sum of the ranks' numbers over each group, which names its members.
TEST(Mesh, GroupsHaveTheRanksThatDifferInTheirAxesOnly) {
  for (const MeshShape shape : {MeshShape{{Axis::tensor, 2}, {Axis::ulysses, 2}, {Axis::ring, 2}},
                                {{Axis::tensor, 2}, {Axis::data, 2}, {Axis::pipeline, 2}},
                                {{Axis::ring, 2}, {Axis::data, 3}},
                                {{Axis::ulysses, 4}, {Axis::pipeline, 2}},
                                {{Axis::tensor, 3}}}) {
    run_threads(static_cast<int>(shape.ranks()), [&](const Communicator& world) {
      const Mesh mesh(world, shape);
      std::vector<Axes> sets(all_axes.begin(), all_axes.end());
      sets.insert(sets.end(), {token_axes, token_axes | Axis::tensor, Axes()});
      for (const Axes axes : sets) {
        std::vector<std::int64_t> members;
        for (int rank = 0; rank < world.size(); ++rank) {
          const bool same = std::all_of(all_axes.begin(), all_axes.end(), [&](Axis axis) {
            return axes.contains(axis) || shape.place(rank, axis) == mesh.rank(axis);
          });
          if (same) members.push_back(std::int64_t{1} << rank);
        }
        const Communicator& group = mesh.over(axes);
        ASSERT_EQ(group.size(), static_cast<int>(members.size())) << to_string(axes);
        EXPECT_EQ(std::pair(mesh.rank(axes), mesh.size(axes)), std::pair(group.rank(), group.size())) << to_string(axes);
        const std::int64_t expected = std::accumulate(members.begin(), members.end(), std::int64_t{0});
        std::int64_t sum = std::int64_t{1} << world.rank();
        group.all_reduce(&sum, &sum, 1, DType::i64, ReduceOp::sum, Stream::inline_()).wait();
        EXPECT_EQ(sum, expected) << to_string(axes);
        EXPECT_EQ(members[static_cast<std::size_t>(group.rank())], std::int64_t{1} << world.rank()) << "in the job's order";
      }
    });
  }
}

constexpr Axes at_both_ends = token_axes | Axis::pipeline;

// The first and the last stage sum the gradient of a parameter that both hold; stages between have no part in it.
TEST(Mesh, EndsOfAPipelineSumGradientsTogether) {
  for (const MeshShape shape : {MeshShape{{Axis::pipeline, 2}},
                                {{Axis::pipeline, 4}},
                                {{Axis::data, 2}, {Axis::pipeline, 3}},
                                {{Axis::tensor, 2}, {Axis::pipeline, 3}},
                                {{Axis::tensor, 2}, {Axis::data, 2}, {Axis::pipeline, 2}}}) {
    run_threads(static_cast<int>(shape.ranks()), [&](const Communicator& world) {
      const Mesh mesh(world, shape);
      EXPECT_EQ(&mesh.gradient_group(token_axes), &mesh.over(token_axes));
      const int stage = mesh.rank(Axis::pipeline);
      if (stage != 0 && stage != shape[Axis::pipeline] - 1) {
        const std::string sentence = sentence_of([&] { mesh.gradient_group(at_both_ends); });
        EXPECT_THAT(sentence,
                    testing::HasSubstr("Stage " + std::to_string(stage) + " is neither the first nor the last of " +
                                       std::to_string(shape[Axis::pipeline])));
        return;
      }
      std::int64_t expected = 0;
      std::int64_t of_all_stages = 0;
      for (int rank = 0; rank < world.size(); ++rank) {
        if (shape.place(rank, Axis::tensor) != mesh.rank(Axis::tensor)) continue;
        const int its = shape.place(rank, Axis::pipeline);
        if (its == 0 || its == shape[Axis::pipeline] - 1) expected |= std::int64_t{1} << rank;
        of_all_stages |= std::int64_t{1} << rank;
      }
      const Communicator& group = mesh.gradient_group(at_both_ends);
      std::int64_t sum = std::int64_t{1} << world.rank();
      group.all_reduce(&sum, &sum, 1, DType::i64, ReduceOp::sum, Stream::inline_()).wait();
      EXPECT_EQ(sum, expected);
      EXPECT_EQ(sum == of_all_stages, shape[Axis::pipeline] == 2) << "the control: others are left out";
      EXPECT_EQ(group.size(), shape.gradient_ranks(at_both_ends));
    });
  }
}

TEST(Mesh, WithoutAPipelineGradientsAreSummedOverTokensOnly) {
  run_threads(4, [](const Communicator& world) {
    const Mesh mesh(world, {{Axis::tensor, 2}, {Axis::data, 2}});
    EXPECT_EQ(&mesh.gradient_group(at_both_ends), &mesh.over(token_axes));
    EXPECT_EQ(&mesh.gradient_group(Axes()), &mesh.over(Axes()));
  });
  run_threads(4, [](const Communicator& world) {
    const Mesh mesh(world, {{Axis::tensor, 2}, {Axis::pipeline, 2}});
    EXPECT_THAT(sentence_of([&] { mesh.gradient_group(at_both_ends | Axis::tensor); }),
                testing::HasSubstr("no group for gradients over the axes pipeline x data x ring x ulysses x tensor"));
  });
}

TEST(MeshShape, CountsTheRanksThatSumAGradient) {
  const MeshShape shape{{Axis::tensor, 3}, {Axis::ulysses, 2}, {Axis::data, 5}, {Axis::pipeline, 7}};
  EXPECT_EQ(shape.gradient_ranks(Axes()), 1);
  EXPECT_EQ(shape.gradient_ranks(token_axes), 10);
  EXPECT_EQ(shape.gradient_ranks(token_axes | Axis::tensor), 30);
  EXPECT_EQ(shape.gradient_ranks(at_both_ends), 20) << "two stages of seven";
  EXPECT_EQ((MeshShape{{Axis::data, 5}, {Axis::pipeline, 2}}).gradient_ranks(at_both_ends), 10);
  EXPECT_EQ((MeshShape{{Axis::data, 5}}).gradient_ranks(at_both_ends), 5);
}

TEST(Mesh, EveryPlaceIsTakenOnce) {
  const MeshShape shape{{Axis::tensor, 2}, {Axis::ulysses, 3}, {Axis::ring, 2}, {Axis::data, 5}, {Axis::pipeline, 4}};
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const auto at = [&](Axis axis) { return shape.place(rank, axis); };
    const int back =
        (((at(Axis::pipeline) * 5 + at(Axis::data)) * 2 + at(Axis::ring)) * 3 + at(Axis::ulysses)) * 2 + at(Axis::tensor);
    EXPECT_EQ(back, rank);
  }
}

TEST(Mesh, NamesSizesThatDoNotMakeTheJob) {
  run_threads(4, [](const Communicator& world) {
    for (const auto& [data, tensor] : {std::pair{2, 3}, {4, 0}, {-2, -2}, {3, 1}, {65536, 65536}}) {
      const std::string sentence = sentence_of([&, d = data, t = tensor] {
        const Mesh mesh(world, {{Axis::tensor, t}, {Axis::data, d}});
      });
      EXPECT_THAT(sentence, testing::HasSubstr(std::to_string(tensor)));
    }
    EXPECT_EQ(Mesh(world, {{Axis::tensor, 2}, {Axis::data, 2}}).size(Axis::data), 2) << "the communicator is unharmed";
  });
}

TEST(Mesh, SaysWhichGroupsItHasNot) {
  run_threads(4, [](const Communicator& world) {
    const Mesh mesh(world, {{Axis::tensor, 2}, {Axis::pipeline, 2}});
    const Axes both = Axes(Axis::tensor) | Axis::pipeline;
    EXPECT_THAT(sentence_of([&] { mesh.over(both); }), testing::HasSubstr("pipeline x tensor"));
    EXPECT_EQ(&mesh.over(both - Axis::pipeline), &mesh.over(Axis::tensor));
  });
}

}  // namespace
}  // namespace stretto
