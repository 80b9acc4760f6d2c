#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace stretto::mpi_door {

class Served;

// Counterparts of communicators that the program has freed. The next communicator of the same ranks takes one of them: that
// costs a small all-gather, and a new one two further ones.
//
// A rank may free its communicator while another still has calls in flight on it. So the ranks of a new communicator compare
// what each of them offers, and take one that all of them have. Threads may make communicators at the same time: what one
// of them offers, no other does.
class ServedPool {
 public:
  using Members = std::vector<int>;  // ranks of the job
  using Offers = std::vector<std::shared_ptr<Served>>;
  static constexpr std::size_t most_offers = 4;

  // Takes free counterparts of these members out of the pool, those with the lowest ids.
  Offers take(const Members& members);
  void put(const Members& members, Offers offers);
  void clear();

 private:
  // For all members together: each counterpart has up to two threads, and shared memory of up to some MiB.
  static constexpr std::size_t most_kept = 16;

  std::mutex mutex_;
  std::vector<std::pair<Members, std::shared_ptr<Served>>> kept_;  // oldest first
};

// A rank's proposal for the communicator that it makes.
struct Wish {
  static constexpr std::int64_t none = -1;
  std::int64_t color = none;  // the same on its members alone; none: this rank is in no communicator that is served
  std::int64_t ids[ServedPool::most_offers] = {none, none, none, none};  // offers
};
// Returns, by color, the lowest id that all ranks of the color offer, or Wish::none.
std::map<std::int64_t, std::int64_t> agree(const std::vector<Wish>& wishes);

}  // namespace stretto::mpi_door
