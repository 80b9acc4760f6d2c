#pragma once
#include <functional>
#include <vector>

#include "interop/c/answer.hpp"

// What strettoGroupStart and strettoGroupEnd collect, of each thread.
namespace stretto::c {

// An operation in a group, with all that it needs until the group's end.
struct Collected {
  std::shared_ptr<strettoComm> comm;
  Operation operation;
  std::shared_ptr<strettoStream> stream;  // none: the calling thread
};

// A call that waits for other ranks, which may be of this thread: so those of a group run side by side, but for those of one
// owner.
struct Blocking {
  const void* owner;
  std::function<void()> call;
};

bool in_group();
void collect(Collected operation);
// Outside a group: now, here.
void run_or_collect(Blocking blocking);
// Of the ranks of one unique id that this thread makes in its group; none outside.
std::shared_ptr<Clique> clique_in_group(const strettoUniqueId& id);
// If the call was inside a group, that fails as well. Gives the failure's result.
strettoResult_t fail_group(strettoResult_t result) noexcept;

// Each in a thread of its own, where there are several; throws what the first of them threw.
void side_by_side(const std::vector<std::function<void()>>& actions);

}  // namespace stretto::c
