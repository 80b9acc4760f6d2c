#pragma once
#include <algorithm>
#include <cmath>

#include "collectives/simulation/simulate_program.hpp"
#include "core/fail.hpp"
#include "stretto/planning/simulate.hpp"

namespace stretto {

using Time = std::int64_t;  // femtoseconds
constexpr double a_second = 1e15;
constexpr double longest_seconds = 4000;  // the longest time of a step; a Time has room for a sum of such times

inline Time time_of(double seconds) {
  require(seconds < longest_seconds, "A step of {} s is longer than the simulator's clock, {} s.", seconds, longest_seconds);
  return std::llround(seconds * a_second);
}

// One level of links at work.
struct Level {
  int ranks;
  Time alpha;
  double overhead, beta;
  int ports;
  bool own_ports;             // each rank has its own ports
  std::vector<Time> out, in;  // times from which ports are free, by unit and port
  std::int64_t bytes = 0;

  // The port by which a rank gets its next message out of its unit, or into it.
  Time* free_port(std::vector<Time>& all, int rank) const {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(rank / ranks) * ports;
    return &*std::min_element(first, first + ports);
  }
};

// All levels, from inside to outside, for `size` ranks. Only the first `period` ranks are simulated.
class Levels {
 public:
  Levels(const LinkModel& links, int size, int period) : size_(size), local_seconds_(1e-9 / links.local_gbs) {
    for (const LinkLevel& level : links.levels) {
      Level made{level.ranks == 0 ? size : level.ranks,
                 time_of(level.alpha_us * 1e-6),
                 level.overhead_us * 1e-6,
                 1e-9 / level.bandwidth_gbs,
                 level.ports,
                 level.own_ports,
                 {},
                 {}};
      const std::size_t ports = static_cast<std::size_t>((period + made.ranks - 1) / made.ranks) * made.ports;
      made.out.resize(ports);
      made.in.resize(ports);
      all_.push_back(std::move(made));
    }
  }

  std::vector<Level>& all() { return all_; }
  Level& between(int rank, int peer) {
    std::size_t l = 0;
    while (rank / all_[l].ranks != peer / all_[l].ranks) ++l;
    return all_[l];
  }

  double seconds_of_work(std::int64_t bytes) const { return static_cast<double>(bytes) * local_seconds_; }
  // These count the bytes as well.
  double seconds_of_read(int rank, int peer, std::int64_t bytes, bool by_link) {
    if (peer == rank) return seconds_of_work(bytes);
    Level& level = between(rank, peer);
    level.bytes += bytes;
    return by_link ? static_cast<double>(bytes) * level.beta : seconds_of_work(bytes);
  }
  // All other ranks' vectors are read, level by level, and reduced. If all ranks get the result, all copies but one are
  // written as well.
  double seconds_of_read_reduce(int rank, int owner, std::int64_t bytes, bool by_link) {
    const int ways = owner == everybody ? 2 : 1;  // the bytes travel to this rank and, for everybody, back
    double seconds = seconds_of_work(bytes) * (size_ - 1) * ways;
    for_each_level(rank, [&](Level& level, std::int64_t others) {
      level.bytes += others * bytes * ways;
      if (by_link) seconds += static_cast<double>(others * bytes) * level.beta;
    });
    if (owner != everybody && owner != rank) between(rank, owner).bytes += bytes;
    return seconds;
  }
  // One rank's bytes are written to all others, and to the rank itself unless they are there already.
  double seconds_of_spread(int rank, std::int64_t bytes, bool to_itself) {
    for_each_level(rank, [&](Level& level, std::int64_t others) { level.bytes += others * bytes; });
    return seconds_of_work(bytes) * (size_ - (to_itself ? 0 : 1));
  }

 private:
  // Calls visit(level, number of ranks that this rank reaches on that level and on no nearer one).
  template <class Visit>
  void for_each_level(int rank, Visit visit) {
    int nearer = 1;
    for (Level& level : all_) {
      const int unit = std::min(level.ranks, size_);
      const int reached = std::min(unit, size_ - rank / unit * unit);
      visit(level, reached - nearer);
      nearer = reached;
    }
  }

  int size_;
  double local_seconds_;  // a byte
  std::vector<Level> all_;
};

}  // namespace stretto
