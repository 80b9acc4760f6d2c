#include "perf/measure.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "perf/iterations.hpp"
#include "stretto/device.hpp"

namespace perf {

using stretto::Communicator;
using stretto::DType;
using stretto::Stream;

namespace {

struct Batch {
  int iterations = 0;
  double seconds = 0;  // of each iteration
};

// The smallest time that the given share of all iterations does not exceed.
double percentile(const std::vector<Batch>& sorted, double share) {
  double iterations = 0;
  for (const Batch& batch : sorted) iterations += batch.iterations;
  double left = std::ceil(share * iterations);
  for (const Batch& batch : sorted) {
    left -= batch.iterations;
    if (left <= 0) return batch.seconds;
  }
  return sorted.back().seconds;
}

// trial: as in iterations_lasting().
template <class Trial>
int iterations_of(const Loop& loop, const Trial& trial) {
  if (loop.seconds > 0) return iterations_lasting(loop.seconds, trial);
  if (loop.least_seconds > 0) return std::max(loop.iterations, iterations_lasting(loop.least_seconds, trial));
  return loop.iterations;
}

bool shorter(const Batch& a, const Batch& b) { return a.seconds < b.seconds; }

double combined(const std::vector<double>& times, Over over) {
  switch (over) {
    case Over::rank0: return times.front();
    case Over::mean: return std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
    case Over::least: return *std::min_element(times.begin(), times.end());
    case Over::most: return *std::max_element(times.begin(), times.end());
  }
  return 0;
}

// On a GPU, times come from events of its stream. The loop has events only at its ends; a second loop of single operations,
// with events around each, gives their distribution.
Timing measure_on_gpu(const Communicator& world, const Loop& loop, const Action& action) {
  constexpr int most_singles = 1000;
  const auto put = [&](int first, int iterations) {
    return stretto::computation().enqueue([&] { action(first, iterations); });
  };
  const auto seconds = [](const stretto::Work& work) {
    work.wait();
    return work.times().done - work.times().started;
  };
  const auto timed = [&](int iterations) {
    stretto::computation().synchronize();
    world.barrier(Stream::inline_()).wait();
    return seconds(put(0, iterations));
  };
  action(0, loop.warmup);
  const auto trial = [&](int iterations) { return from_rank0(world, timed(iterations)); };
  const int iterations = iterations_of(loop, trial);
  const double all = timed(iterations);
  world.barrier(Stream::inline_()).wait();
  const int single = std::min(iterations, most_singles);
  std::vector<stretto::Work> works;
  works.reserve(static_cast<std::size_t>(single));
  for (int i = 0; i < single; ++i) works.push_back(put(i, 1));
  std::vector<Batch> singles;
  singles.reserve(works.size());
  for (const stretto::Work& work : works) singles.push_back({1, seconds(work)});
  std::sort(singles.begin(), singles.end(), shorter);
  return {all / iterations, percentile(singles, 0.5), percentile(singles, 0.99)};
}

}  // namespace

Timing measure(const Communicator& world, const Loop& loop, const Action& action) {
  if (stretto::current_device() == stretto::Device::cuda) return measure_on_gpu(world, loop, action);
  constexpr double long_enough = 2.5e-6;  // of a batch: a hundred times the cost of reading the clock
  const auto trial = [&](int iterations) {
    world.barrier(Stream::inline_()).wait();
    const double begin = stretto::now_seconds();
    action(0, iterations);
    return from_rank0(world, stretto::now_seconds() - begin);
  };
  action(0, loop.warmup);
  const int iterations = iterations_of(loop, trial);
  std::vector<Batch> batches;
  batches.reserve(std::min(iterations, 1 << 16));
  world.barrier(Stream::inline_()).wait();
  const double begin = stretto::now_seconds();
  double last = begin;
  int size = 1;
  for (int done = 0; done < iterations;) {
    const int here = std::min(size, iterations - done);
    action(done, here);
    const double now = stretto::now_seconds();
    batches.push_back({here, (now - last) / here});
    if (now - last < long_enough) size *= 2;
    done += here;
    last = now;
  }
  std::sort(batches.begin(), batches.end(), shorter);
  return {(last - begin) / iterations, percentile(batches, 0.5), percentile(batches, 0.99)};
}

Timing typical(const std::vector<Timing>& timings) {
  Timing result;
  for (double Timing::*field : {&Timing::mean, &Timing::p50, &Timing::p99}) {
    std::vector<Batch> values;
    values.reserve(timings.size());
    for (const Timing& timing : timings) values.push_back({1, timing.*field});
    std::sort(values.begin(), values.end(), shorter);
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
    world.send(&mine, 1, DType::f64, 0, Stream::inline_()).wait();
    return {};
  }
  std::vector<double> all(world.size(), mine);
  for (int rank = 1; rank < world.size(); ++rank) world.recv(&all[rank], 1, DType::f64, rank, Stream::inline_()).wait();
  return all;
}

double from_rank0(const Communicator& world, double value) {
  if (world.rank() != 0) {
    world.recv(&value, 1, DType::f64, 0, Stream::inline_()).wait();
    return value;
  }
  for (int rank = 1; rank < world.size(); ++rank) world.send(&value, 1, DType::f64, rank, Stream::inline_()).wait();
  return value;
}

std::vector<std::string> to_rank0(const Communicator& world, const std::string& mine) {
  const std::vector<double> sizes = to_rank0(world, static_cast<double>(mine.size()));
  if (world.rank() != 0) {
    world.send(mine.data(), static_cast<std::int64_t>(mine.size()), DType::u8, 0, Stream::inline_()).wait();
    return {};
  }
  std::vector<std::string> all{mine};
  for (int rank = 1; rank < world.size(); ++rank) {
    all.emplace_back(static_cast<std::size_t>(sizes[rank]), '\0');
    world.recv(all.back().data(), static_cast<std::int64_t>(all.back().size()), DType::u8, rank, Stream::inline_()).wait();
  }
  return all;
}

}  // namespace perf
