#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "stretto/tensor.hpp"

namespace stretto {

// The keys that a worker has last sent to a part: a list that comes again travels as 8 bytes (Li et al. 2014, section 5.1).
// Both ends keep the last list of whole messages, which arrive in order, so that they always agree. One end of one
// direction, or of several parts.
class KeyCache {
 public:
  using Place = std::pair<std::size_t, std::size_t>;  // table, part

  // bytes: a message that has `count` keys from byte `begin` on. Returns it with their signature instead, if they are those
  // of the last one; else returns an empty tensor, and the message must be sent whole.
  Tensor shortened(const Place& place, const Tensor& bytes, std::size_t begin, std::size_t count);
  // At the other end: of each message that came whole.
  void note(const Place& place, const Tensor& bytes, std::size_t begin, std::size_t count);
  // Throws Error(internal) if the signature is not that of the last list.
  Tensor restored(const Place& place, const Tensor& bytes, std::size_t begin) const;

 private:
  struct List {
    std::vector<std::byte> keys;
    std::uint64_t signature = 0;
  };
  std::map<Place, List> last_;
};

}  // namespace stretto
