// Postponed gathers deliver complete parameters, bucket by bucket, while other work runs.
#include "stretto/overlap/postponed_gather.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "../variables.hpp"
#include "stretto/stretto.hpp"

namespace stretto {
namespace {

constexpr std::int64_t lengths[] = {100, 200, 301, 50};

std::vector<Tensor> tensors(bool neighbours) {
  std::vector<Tensor> result;
  const Tensor memory = Tensor::zeros({1000}, DType::f32);
  std::int64_t at = 0;
  for (const std::int64_t length : lengths) {
    result.push_back(memory.view(at, {length}));
    at += length + (neighbours ? 0 : 3);
  }
  return result;
}

// Buckets 100 | 200 | 301 | 50; the last three are postponed.
struct Buckets {
  Buckets(const Communicator& world, const Stream& stream, bool overlap = true)
      : gradients(tensors(true)),
        buckets(gradients, world, stream, {.bucket_bytes = 4, .overlap = overlap, .scatter = true}) {
    for (std::size_t i = 0; i < 4; ++i) buckets.ready(i);
    buckets.finish();
    buckets.set_postponed({false, true, true, true});
  }
  std::vector<Tensor> gradients;
  GradientBuckets buckets;
};

double value(int rank, int round, std::size_t tensor, std::int64_t i) {
  return 1 + rank + 10 * round + 100 * static_cast<double>(tensor) + 1000 * static_cast<double>(i);
}

PostponedGather::Update writing(const Communicator& world, const std::vector<Tensor>& values, int round) {
  return [&world, &values, round](const std::vector<ElementRange>& share) {
    for (const ElementRange& range : share) {
      for (std::int64_t i = range.first; i < range.first + range.count; ++i) {
        values[range.tensor].set(i, value(world.rank(), round, range.tensor, i));
      }
    }
  };
}

// The rank whose share holds element i of a bucket with one tensor.
int owner(const Communicator& world, std::int64_t length, std::int64_t i) {
  int rank = 0;
  while (i >= length / world.size() * (rank + 1) + std::min<std::int64_t>(rank + 1, length % world.size())) ++rank;
  return rank;
}

TEST(PostponedGather, BringsTheOthersShares) {
  for (const int ranks : {1, 2, 3}) {
    for (const bool neighbours : {true, false}) {
      for (const bool overlap : {true, false}) {
        run_threads(ranks, [&](const Communicator& world) {
          const Buckets of(world, Stream("dp"), overlap);
          const std::vector<Tensor> values = tensors(neighbours);
          PostponedGather gather(of.buckets, values, "parameters");
          for (int round = 0; round < 3; ++round) {
            gather.start(writing(world, values, round));
            for (const std::size_t tensor : {0, 3, 2, 1}) {
              gather.wait_for(tensor);
              for (std::int64_t i = 0; i < lengths[tensor]; ++i) {
                const double expected = tensor == 0 ? 0 : value(owner(world, lengths[tensor], i), round, tensor, i);
                ASSERT_EQ(values[tensor].at(i), expected) << tensor << " " << i;
              }
            }
            gather.wait();
          }
        });
      }
    }
  }
}

// A blocked stream shows that nothing arrives before wait_for(). The bucket that forward needs first arrives first and does
// not wait for the others.
TEST(PostponedGather, ComesWhenItIsWaitedForTheLastBucketFirst) {
  run_threads(2, [](const Communicator& world) {
    const Stream stream("dp");
    const Buckets of(world, stream);
    const std::vector<Tensor> values = tensors(false);
    PostponedGather gather(of.buckets, values, "parameters");
    std::atomic<bool> held = true;
    stream.enqueue([&] {
      while (held) std::this_thread::yield();
    });
    const std::uint64_t since = world.ledger().next_sequence();
    gather.start(writing(world, values, 0));
    const std::int64_t theirs = world.rank() == 0 ? lengths[3] - 1 : 0;
    EXPECT_EQ(values[3].at(theirs), 0) << "the control";
    held = false;
    gather.wait_for(3);
    EXPECT_EQ(values[3].at(theirs), value(1 - world.rank(), 0, 3, theirs));
    gather.wait();
    std::vector<std::int64_t> counts;
    for (const Record& record : world.ledger().records(since)) counts.push_back(record.count);
    EXPECT_THAT(counts, testing::ElementsAre(50, 301, 200));
    EXPECT_EQ(world.ledger().records(since)[0].tag, "parameters");
    EXPECT_EQ(world.ledger().records(since)[0].collective, Collective::all_gather);
  });
}

TEST(PostponedGather, RefusesTensorsThatAreMissing) {
  run_threads(1, [](const Communicator& world) {
    const Buckets of(world, Stream::inline_());
    EXPECT_THAT(sentence_of([&] { PostponedGather(of.buckets, {Tensor({1}, DType::f32)}, ""); }),
                testing::HasSubstr("has no tensor among the 1"));
    PostponedGather gather(of.buckets, tensors(true), "");
    EXPECT_THAT(sentence_of([&] { gather.wait_for(4); }), testing::HasSubstr("no tensor 4"));
  });
}

}  // namespace
}  // namespace stretto
