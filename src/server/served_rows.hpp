#pragma once
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "server/push_clocks.hpp"
#include "stretto/server.hpp"

namespace stretto {

// KeyedRows holds the rows of some keys, in the order of the keys, which ascends.
struct KeyedRows {
  std::vector<std::uint64_t> keys;
  Tensor rows;  // [keys, width]; empty for a pull
};

// The rows of a sparse table that belong to its server. A key's row is made when the key is first pushed or pulled. It knows
// nothing of messages.
class ServedRows {
 public:
  ServedRows(const ServedTable& table, int workers, Consistency consistency);

  void push(int worker, std::int64_t clock, KeyedRows pushed);
  struct Pull {
    int worker = 0;
    std::int64_t clock = 0;
    std::uint64_t request = 0;
    std::vector<std::uint64_t> keys = {};
  };
  void pull(Pull pull) { waiting_.push_back(std::move(pull)); }

  void leave(int worker) { pushes_.leave(worker); }

  struct Answer {  // as ServedPart's
    Pull pull;
    Tensor rows;
    std::int64_t version = 0;
  };
  std::vector<Answer> answers();
  std::size_t keys() const { return places_.size(); }

 private:
  void apply(const KeyedRows& pushed);
  Tensor gathered(const std::vector<std::uint64_t>& keys);
  std::int64_t place_of(std::uint64_t key);
  Tensor row(std::int64_t place) const { return storage_.view(place * width_, {width_}); }

  std::int64_t width_;
  DType dtype_;
  std::function<void(const Tensor& row, std::uint64_t key)> initial_row_;
  Consistency consistency_;
  ServerUpdate update_;
  std::unordered_map<std::uint64_t, std::int64_t> places_;  // in storage_
  Tensor storage_;                                          // [capacity, width]
  std::int64_t version_ = 0;
  PushClocks<KeyedRows> pushes_;
  std::vector<Pull> waiting_;
};

// Adds up the rows of several lists by key, in the order of the lists.
KeyedRows sum_by_key(const std::vector<KeyedRows>& lists);

}  // namespace stretto
