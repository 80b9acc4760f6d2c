// Measures the move of a matrix whose rows lie on the first half of the ranks to the second half, by columns and as copies,
// beside a gather at the first rank and a broadcast. moves.py runs this program and reads its line.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <vector>

#include "stretto/launch.hpp"
#include "stretto/move.hpp"

namespace {

using namespace stretto;

std::vector<int> range(int first, int last) {
  std::vector<int> result(static_cast<std::size_t>(last - first));
  std::iota(result.begin(), result.end(), first);
  return result;
}

// The median of several times of the slowest rank.
template <class Body>
double seconds(const Communicator& world, int rounds, Body body) {
  std::vector<double> found;
  for (int i = 0; i <= rounds; ++i) {
    world.barrier(Stream::inline_()).wait();
    const double begin = now_seconds();
    body();
    double took = now_seconds() - begin;
    world.all_reduce(&took, &took, 1, DType::f64, ReduceOp::max, Stream::inline_()).wait();
    if (i > 0) found.push_back(took);  // the first one connects
  }
  std::nth_element(found.begin(), found.begin() + rounds / 2, found.end());
  return found[static_cast<std::size_t>(rounds / 2)];
}

void measure(const Communicator& world, std::int64_t mib, int rounds) {
  const int half = world.size() / 2, rank = world.rank();
  const Shape shape{mib << 8, 1024};  // of 4 bytes
  const Division rows = Division::along(0, shape, range(0, half)),
                 columns = Division::along(1, shape, range(half, world.size())),
                 copies = Division::replicated(shape, range(half, world.size()));
  const auto part = [&](const Division& division) {
    return division.elements(rank) == 0 ? Tensor() : Tensor::zeros({division.elements(rank)}, DType::f32);
  };
  const auto time_of = [&](const Division& to) {
    const Move move(world, plan_move({{DType::f32, shape, rows, to}}, world.size(), world.nodes()));
    const std::vector<Tensor> input{part(rows)}, output{part(to)};
    return seconds(world, rounds, [&] { move.start(input, output, Stream::inline_()).wait(); });
  };
  const double by_columns = time_of(columns), as_copies = time_of(copies);

  const Communicator sources = world.split(rank < half ? 0 : 1, rank, "sources");
  const Communicator receivers = world.split(rank == 0 || rank >= half ? 0 : 1, rank, "receivers");
  const Tensor mine = part(rows), whole = rank == 0 || rank >= half ? Tensor::zeros(shape, DType::f32) : Tensor();
  const double broadcast = seconds(world, rounds, [&] {
    if (rank < half) {
      sources.gather(mine.raw(), whole ? whole.raw() : nullptr, mine.size(), DType::f32, 0, Stream::inline_()).wait();
    }
    if (whole) receivers.broadcast(whole, 0, Stream::inline_()).wait();
  });
  if (rank == 0) {
    std::printf("{\"bytes\": %lld, \"columns_s\": %.6f, \"copies_s\": %.6f, \"broadcast_s\": %.6f}\n",
                static_cast<long long>(shape[0]) * shape[1] * 4, by_columns, as_copies, broadcast);
  }
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): CLI11's, of flags that are wrong here
  int ranks = 0, rounds = 3;
  std::int64_t mib = 64;
  CLI::App app("Times moves of a matrix between halves of the ranks");
  app.add_option("--nproc", ranks, "Ranks to start; 0: those of a launcher");
  app.add_option("--mib", mib, "Of the matrix")->check(CLI::PositiveNumber);
  app.add_option("--rounds", rounds, "Timed moves of each kind")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  return launch(ranks, [&](const Communicator& world) { measure(world, mib, rounds); });
}
