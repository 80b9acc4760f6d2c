#include "overlap/tracing/trace_clock.hpp"

#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <fstream>

#include "core/fail.hpp"

namespace stretto {
namespace {

constexpr int exchanges_a_reading = 16;

std::vector<ClockExchange> ask(const Communicator& world, const std::function<double()>& now) {
  std::vector<ClockExchange> exchanges;
  for (int i = 0; i < exchanges_a_reading; ++i) {
    ClockExchange exchange{now(), 0, 0};
    world.send(&exchange.sent, 1, DType::f64, 0, Stream::inline_()).wait();
    world.recv(&exchange.there, 1, DType::f64, 0, Stream::inline_()).wait();
    exchange.received = now();
    exchanges.push_back(exchange);
  }
  return exchanges;
}

void answer(const Communicator& world, int rank, const std::function<double()>& now) {
  for (int i = 0; i < exchanges_a_reading; ++i) {
    double asked = 0;
    world.recv(&asked, 1, DType::f64, rank, Stream::inline_()).wait();
    const double here = now();
    world.send(&here, 1, DType::f64, rank, Stream::inline_()).wait();
  }
}

}  // namespace

ClockReading read_clock(const std::vector<ClockExchange>& exchanges) {
  const auto round_trip = [](const ClockExchange& exchange) { return exchange.received - exchange.sent; };
  const ClockExchange best = *std::min_element(exchanges.begin(), exchanges.end(),
                                               [&](const auto& a, const auto& b) { return round_trip(a) < round_trip(b); });
  const double middle = best.sent + round_trip(best) / 2;
  return {middle, best.there - middle, round_trip(best) / 2};
}

double ClockLine::there(double here) const {
  const double apart = last_.at - first_.at;
  const double part = apart > 0 ? std::clamp((here - first_.at) / apart, 0.0, 1.0) : 1;
  return here + first_.offset + part * (last_.offset - first_.offset);
}

// The kernel's boot id, and the time namespace: a container's may shift its clock.
std::string clock_name() {
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string name;
  std::getline(boot, name);
  struct stat space {};
  if (stat("/proc/self/ns/time", &space) == 0) name += fmt::format("/{}", space.st_ino);
  return name;
}

ClockReading compare_with_rank_0(const Communicator& world, const std::string& name, const std::function<double()>& now) {
  const auto mine = static_cast<std::int64_t>(XXH3_64bits(name.data(), name.size()));
  std::vector<std::int64_t> clocks(static_cast<std::size_t>(world.size()));
  world.all_gather(&mine, clocks.data(), 1, DType::i64, Stream::inline_()).wait();
  ClockReading reading;
  for (int rank = 1; rank < world.size(); ++rank) {
    if (clocks[static_cast<std::size_t>(rank)] == clocks[0]) continue;
    if (world.rank() == 0) answer(world, rank, now);
    if (world.rank() == rank) reading = read_clock(ask(world, now));
  }
  return reading;
}

}  // namespace stretto
