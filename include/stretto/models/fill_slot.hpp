#pragma once
#include <concepts>
#include <cstdint>
#include <functional>

namespace stretto {

// Writes the sequence of slot s of a step, 0 <= s < global_batch, which must not depend on the layout: `sequence` tokens,
// and for each its target, the token that follows it. It is made from a function of one of two kinds:
// - fill(slot, tokens, targets): a sequence is one document, and every token counts.
// - fill(slot, tokens, targets, starts): documents may follow each other in a sequence, and need not count as a whole. A
//   target below 0 does not count: the loss of a step is the mean over the targets that do, wherever they lie, and ranks
//   exchange their number before each step, 8 bytes over the data-parallel ones. starts are the position at which the
//   document of each token begins; from there on positions count anew, and no token sees one before it. Padding is a
//   document without targets that count.
class FillSlot {
 public:
  template <std::invocable<std::int64_t, std::int32_t*, std::int32_t*> Fill>
  FillSlot(Fill fill)
      : fill_([fill](std::int64_t slot, std::int32_t* tokens, std::int32_t* targets, std::int32_t*) {
          fill(slot, tokens, targets);
        }) {}
  template <std::invocable<std::int64_t, std::int32_t*, std::int32_t*, std::int32_t*> Fill>
  FillSlot(Fill fill) : fill_(fill), has_documents_(true) {}

  bool has_documents() const { return has_documents_; }  // the second kind
  // starts: not written by the first kind.
  void operator()(std::int64_t slot, std::int32_t* tokens, std::int32_t* targets, std::int32_t* starts = nullptr) const {
    fill_(slot, tokens, targets, starts);
  }

 private:
  std::function<void(std::int64_t, std::int32_t*, std::int32_t*, std::int32_t*)> fill_;
  bool has_documents_ = false;
};

}  // namespace stretto
