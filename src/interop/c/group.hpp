#pragma once
#include <functional>
#include <vector>

#include "interop/c/answer.hpp"

// The calls that each thread collects between strettoGroupStart and strettoGroupEnd.
namespace stretto::c {

// An operation in a group, with all that it needs until the group's end.
struct Collected {
  std::shared_ptr<strettoComm> comm;
  Operation operation;
  std::shared_ptr<strettoStream> stream;  // null: the calling thread
};

// A call that blocks until other ranks make it too. The calling thread may own several of these ranks. So at the end of a
// group each owner's calls run in a thread of their own, in the order in which they were collected.
struct Blocking {
  const void* owner;
  std::function<void()> call;
};

bool in_group();
void collect(Collected operation);
// Outside a group the call runs at once; inside one it is collected.
void run_or_collect(Blocking blocking);
// Returns the clique of all ranks that this thread makes from `id` in its group; null outside a group.
std::shared_ptr<Clique> clique_in_group(const strettoUniqueId& id);
// Inside a group, a failed call makes the whole group fail. Returns `result` unchanged.
strettoResult_t fail_group(strettoResult_t result) noexcept;

// Runs several actions in parallel, each in a thread of its own; runs a single action in the calling thread. Throws the
// error of the first action in the list that failed.
void side_by_side(const std::vector<std::function<void()>>& actions);

}  // namespace stretto::c
