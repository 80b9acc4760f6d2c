#include "measure.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace perf {

using stretto::Communicator;
using stretto::DType;
using stretto::Stream;

namespace {

// The smallest value that a share of all values does not exceed.
double percentile(const std::vector<double>& sorted, double share) {
  const auto place = static_cast<std::size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::max<std::size_t>(place, 1) - 1];
}

double combined(const std::vector<double>& times, Over over) {
  switch (over) {
    case Over::rank0: return times.front();
    case Over::mean: return std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
    case Over::least: return *std::min_element(times.begin(), times.end());
    case Over::most: return *std::max_element(times.begin(), times.end());
  }
  return 0;
}

}  // namespace

Timing measure(const Communicator& world, const Loop& loop, const Action& action) {
  for (int i = 0; i < loop.warmup; ++i) action(i % loop.copies);
  std::vector<double> stamps(loop.iterations + 1);
  world.barrier(Stream::inline_());
  stamps[0] = stretto::now_seconds();
  for (int i = 0; i < loop.iterations; ++i) {
    action(i % loop.copies);
    stamps[i + 1] = stretto::now_seconds();
  }
  Timing timing;
  timing.mean = (stamps.back() - stamps.front()) / loop.iterations;
  std::adjacent_difference(stamps.begin(), stamps.end(), stamps.begin());
  stamps.erase(stamps.begin());
  std::sort(stamps.begin(), stamps.end());
  timing.p50 = percentile(stamps, 0.5);
  timing.p99 = percentile(stamps, 0.99);
  return timing;
}

Timing typical(const std::vector<Timing>& timings) {
  Timing result;
  for (double Timing::*field : {&Timing::mean, &Timing::p50, &Timing::p99}) {
    std::vector<double> values;
    for (const Timing& timing : timings) values.push_back(timing.*field);
    std::sort(values.begin(), values.end());
    result.*field = percentile(values, 0.5);
  }
  return result;
}

Timing over_ranks(const Communicator& world, const Timing& mine, Over over) {
  Timing result = mine;
  for (double Timing::*field : {&Timing::mean, &Timing::p50, &Timing::p99}) {
    const std::vector<double> all = to_rank0(world, mine.*field);
    if (!all.empty()) result.*field = combined(all, over);
  }
  return result;
}

std::vector<double> to_rank0(const Communicator& world, double mine) {
  if (world.rank() != 0) {
    world.send(&mine, 1, DType::f64, 0, Stream::inline_());
    return {};
  }
  std::vector<double> all(world.size(), mine);
  for (int rank = 1; rank < world.size(); ++rank) world.recv(&all[rank], 1, DType::f64, rank, Stream::inline_());
  return all;
}

double from_rank0(const Communicator& world, double value) {
  if (world.rank() != 0) {
    world.recv(&value, 1, DType::f64, 0, Stream::inline_());
    return value;
  }
  for (int rank = 1; rank < world.size(); ++rank) world.send(&value, 1, DType::f64, rank, Stream::inline_());
  return value;
}

std::vector<std::string> to_rank0(const Communicator& world, const std::string& mine) {
  const std::vector<double> sizes = to_rank0(world, static_cast<double>(mine.size()));
  if (world.rank() != 0) {
    world.send(mine.data(), static_cast<std::int64_t>(mine.size()), DType::u8, 0, Stream::inline_());
    return {};
  }
  std::vector<std::string> all{mine};
  for (int rank = 1; rank < world.size(); ++rank) {
    all.emplace_back(static_cast<std::size_t>(sizes[rank]), '\0');
    world.recv(all.back().data(), static_cast<std::int64_t>(all.back().size()), DType::u8, rank, Stream::inline_());
  }
  return all;
}

}  // namespace perf
