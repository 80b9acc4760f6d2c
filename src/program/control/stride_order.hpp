#pragma once
#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <vector>

namespace stretto {

// Whose turn it is (stride scheduling; Waldspurger and Weihl 1995). A client's pass grows by 1 / weight with each of its
// turns, and the client with the smallest pass is next.
class StrideOrder {
 public:
  std::size_t add(double weight) {
    clients_.push_back({weight, now_});
    return clients_.size() - 1;
  }
  // The client had nothing to do and now has: turns that it did not take meanwhile are lost.
  void comes_back(std::size_t client) { clients_[client].pass = std::max(clients_[client].pass, now_); }

  struct Candidate {
    std::size_t client = 0;
    std::vector<int> executors;
  };
  // Returns the candidate whose turn it is and that is free, of those in the order given, and counts the turn. Executors of
  // a candidate that is not free are kept for it: smaller programs of clients behind it cannot overtake it for ever.
  template <class IsFree>
  std::optional<std::size_t> next(const std::vector<Candidate>& candidates, IsFree is_free) {
    std::vector<std::size_t> order(candidates.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return clients_[candidates[i].client].pass; });
    std::set<int> kept;
    for (const std::size_t i : order) {
      const std::vector<int>& its = candidates[i].executors;
      const bool waits = std::ranges::any_of(its, [&](int executor) { return kept.contains(executor); });
      if (!waits && is_free(i)) {
        Client& client = clients_[candidates[i].client];
        now_ = std::max(now_, client.pass);
        client.pass += 1 / client.weight;
        return i;
      }
      kept.insert(its.begin(), its.end());
    }
    return std::nullopt;
  }

 private:
  struct Client {
    double weight = 1, pass = 0;
  };
  std::vector<Client> clients_;
  double now_ = 0;  // the pass of the last turn
};

}  // namespace stretto
