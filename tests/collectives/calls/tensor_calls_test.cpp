// The functions of Communicator that take whole tensors, each beside the function that takes pointers and counts.
#include <gtest/gtest.h>

#include <functional>
#include <tuple>

#include "stretto/stretto.hpp"
#include "support/data.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

constexpr int ranks = 3, root = 1;
constexpr DType type = DType::f64;
using Counts = std::vector<std::int64_t>;

Tensor some(std::int64_t count, int rank) { return integer_tensor({count}, type, static_cast<unsigned>(rank + 1)); }

// Runs both forms, each on buffers of its own, and compares what they wrote.
void expect_alike(const Communicator& world, std::int64_t reads, std::int64_t writes,
                  const std::function<Work(const Tensor&, const Tensor&, const Stream&)>& on_tensors,
                  const std::function<Work(const void*, void*, const Stream&)>& on_pointers) {
  const Stream stream("tensors");
  const Tensor expected = some(writes, 7), found = some(writes, 7), input = some(reads, world.rank());
  on_pointers(input.raw(), expected.raw(), stream).wait();
  on_tensors(input.clone(), found.reshaped({1, writes}), stream).wait();  // tensors that the call alone keeps
  for (std::int64_t i = 0; i < writes; ++i) ASSERT_EQ(found.at(i), expected.at(i)) << "element " << i;
}

TEST(TensorCalls, DoWhatPointersAndCountsDo) {
  run_threads(ranks, [](const Communicator& world) {
    const int rank = world.rank();
    const bool is_root = rank == root;
    const Counts counts{2, 0, 5};
    const std::int64_t own = counts[static_cast<std::size_t>(rank)];
    const auto alike = [&](std::int64_t reads, std::int64_t writes, auto on_tensors, auto on_pointers) {
      expect_alike(world, reads, writes, on_tensors, on_pointers);
    };
    using T = const Tensor&;
    using S = const Stream&;
    alike(
        0, 6, [&](T, T out, S on) { return world.all_reduce(out, ReduceOp::sum, on); },
        [&](const void*, void* out, S on) { return world.all_reduce(out, out, 6, type, ReduceOp::sum, on); });
    alike(
        0, 6, [&](T, T out, S on) { return world.broadcast(out, root, on); },
        [&](const void*, void* out, S on) { return world.broadcast(out, out, 6, type, root, on); });
    alike(
        0, 6, [&](T, T out, S on) { return world.reduce(out, ReduceOp::max, root, on); },
        [&](const void*, void* out, S on) { return world.reduce(out, out, 6, type, ReduceOp::max, root, on); });
    alike(
        12, 4, [&](T in, T out, S on) { return world.reduce_scatter(in, out, ReduceOp::max, on); },
        [&](const void* in, void* out, S on) { return world.reduce_scatter(in, out, 4, type, ReduceOp::max, on); });
    alike(
        7, own, [&](T in, T out, S on) { return world.reduce_scatter_v(in, out, counts, ReduceOp::max, on); },
        [&](const void* in, void* out, S on) { return world.reduce_scatter_v(in, out, counts, type, ReduceOp::max, on); });
    alike(
        4, 12, [&](T in, T out, S on) { return world.all_gather(in, out, on); },
        [&](const void* in, void* out, S on) { return world.all_gather(in, out, 4, type, on); });
    alike(
        own, 7, [&](T in, T out, S on) { return world.all_gather_v(in, out, counts, on); },
        [&](const void* in, void* out, S on) { return world.all_gather_v(in, out, counts, type, on); });
    alike(
        12, 12, [&](T in, T out, S on) { return world.all_to_all(in, out, on); },
        [&](const void* in, void* out, S on) { return world.all_to_all(in, out, 4, type, on); });
    const Counts back(ranks, own);  // every rank sends counts[r] elements to rank r
    alike(
        7, own * ranks, [&](T in, T out, S on) { return world.all_to_all_v(in, counts, out, back, on); },
        [&](const void* in, void* out, S on) { return world.all_to_all_v(in, counts, out, back, type, on); });
    alike(
        4, is_root ? 12 : 0, [&](T in, T out, S on) { return world.gather(in, out, root, on); },
        [&](const void* in, void* out, S on) { return world.gather(in, out, 4, type, root, on); });
    alike(
        own, is_root ? 7 : 0, [&](T in, T out, S on) { return world.gather_v(in, out, counts, root, on); },
        [&](const void* in, void* out, S on) { return world.gather_v(in, out, counts, type, root, on); });
    alike(
        is_root ? 12 : 0, 4, [&](T in, T out, S on) { return world.scatter(in, out, root, on); },
        [&](const void* in, void* out, S on) { return world.scatter(in, out, 4, type, root, on); });
    alike(
        is_root ? 7 : 0, own, [&](T in, T out, S on) { return world.scatter_v(in, out, counts, root, on); },
        [&](const void* in, void* out, S on) { return world.scatter_v(in, out, counts, type, root, on); });
    const int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    alike(
        4, 4, [&](T in, T out, S on) { return world.send_recv(in, to, out, from, on); },
        [&](const void* in, void* out, S on) { return world.send_recv(in, 4, to, out, 4, from, type, on); });
    alike(
        4, 4,
        [&](T in, T out, S on) {
          if (rank == 2) return Work();
          return rank == 0 ? world.send(in, 1, on) : world.recv(out, 0, on);
        },
        [&](const void* in, void* out, S on) {
          if (rank == 2) return Work();
          return rank == 0 ? world.send(in, 4, type, 1, on) : world.recv(out, 4, type, 0, on);
        });
  });
}

TEST(TensorCalls, WorkInPlaceOnViews) {
  run_threads(ranks, [](const Communicator& world) {
    const Tensor whole = Tensor::zeros({ranks, 4}, type);
    const Tensor own = whole.view(4 * world.rank(), {4});
    own.copy_from(some(4, world.rank()));
    world.all_gather(own, whole, Stream::inline_()).wait();
    for (int rank = 0; rank < ranks; ++rank) {
      const Tensor expected = some(4, rank);
      for (int i = 0; i < 4; ++i) EXPECT_EQ(whole.at(4 * rank + i), expected.at(i));
    }
  });
}

TEST(TensorCalls, RefuseSizesAndTypesThatDoNotFit) {
  run_threads(2, [](const Communicator& world) {
    const Tensor three = Tensor::zeros({3}, type), six = Tensor::zeros({6}, type);
    expect_refusal([&] { std::ignore = world.all_gather(three, three, Stream::inline_()); },
                   "an input of 3 elements and an output of 3; of these sizes it reads 3 and writes 6");
    expect_refusal([&] { std::ignore = world.reduce_scatter(six, six, ReduceOp::sum, Stream::inline_()); },
                   "it reads 12 and writes 6");
    expect_refusal([&] { std::ignore = world.all_to_all(three, three, Stream::inline_()); }, "it reads 2 and writes 3");
    expect_refusal([&] { std::ignore = world.all_gather_v(three, six, {3, 2}, Stream::inline_()); }, "writes 5");
    expect_refusal([&] { std::ignore = world.all_gather_v(three, three, {3}, Stream::inline_()); }, "");
    expect_refusal([&] { std::ignore = world.all_gather(three, Tensor({6}, DType::f32), Stream::inline_()); },
                   "an input of f64 and an output of f32");
    world.all_gather(three, six, Stream::inline_()).wait();  // the communicator stays usable
  });
}

}  // namespace
}  // namespace stretto
