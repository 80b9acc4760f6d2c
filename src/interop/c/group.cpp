#include "interop/c/group.hpp"

#include <exception>
#include <thread>
#include <tuple>
#include <utility>

namespace stretto::c {
namespace {

struct Group {
  int depth = 0;
  std::vector<Collected> operations;
  std::vector<Blocking> blocking;
  std::map<std::string, std::shared_ptr<Clique>> cliques;  // by the bytes of the id
  Failure failure;
};
thread_local Group group;

// Sorts the items into lists by key. The lists are in the order in which their keys first appear.
template <class Item, class KeyOf>
std::vector<std::vector<Item>> sorted_out(const std::vector<Item>& items, const KeyOf& key_of) {
  std::vector<std::vector<Item>> lists;
  for (const Item& item : items) {
    auto list = lists.begin();
    while (list != lists.end() && key_of(list->front()) != key_of(item)) ++list;
    if (list == lists.end()) list = lists.emplace(list);
    list->push_back(item);
  }
  return lists;
}

// Starts the operations of one rank together, so that they progress together.
void start(const std::vector<Collected>& operations) {
  try {
    OperationGroup together;
    for (const Collected& one : operations) std::ignore = one.operation.start(stream_of(one.stream));
    const Work work = together.end();
    for (const Collected& one : operations) watch(*one.comm, one.stream, work);
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    for (const Collected& one : operations) note(failure, one.comm.get());
    throw;
  }
}

void end(Group ended) {
  if (ended.failure.result != strettoSuccess) throw PassedOn{std::move(ended.failure)};
  require_usage(ended.operations.empty() || ended.blocking.empty(),
                "A group has {} operations and {} calls that make communicators or windows; make a group of each.",
                ended.operations.size(), ended.blocking.size());
  std::vector<std::function<void()>> actions;
  const auto by_owner = sorted_out(ended.blocking, [](const Blocking& one) { return one.owner; });
  for (const auto& list : by_owner) {
    actions.emplace_back([&list] {
      for (const Blocking& one : list) one.call();
    });
  }
  // All communicators of a rank share one ledger.
  const auto by_rank = sorted_out(ended.operations, [](const Collected& one) { return &one.comm->ranks.job().ledger(); });
  for (const auto& list : by_rank) {
    actions.emplace_back([&list] { start(list); });
  }
  side_by_side(actions);
}

}  // namespace

bool in_group() { return group.depth > 0; }
void collect(Collected operation) { group.operations.push_back(std::move(operation)); }
void run_or_collect(Blocking blocking) {
  if (!in_group()) return blocking.call();
  group.blocking.push_back(std::move(blocking));
}
std::shared_ptr<Clique> clique_in_group(const strettoUniqueId& id) {
  if (!in_group()) return nullptr;
  auto& clique = group.cliques[{id.internal, sizeof id.internal}];
  if (!clique) clique = std::make_shared<Clique>();
  return clique;
}

strettoResult_t fail_group(strettoResult_t result) noexcept {
  if (result != strettoSuccess && in_group() && group.failure.result == strettoSuccess) {
    group.failure = {result, strettoGetLastError(nullptr)};
  }
  return result;
}

void side_by_side(const std::vector<std::function<void()>>& actions) {
  if (actions.size() == 1) return actions.front()();
  std::vector<std::exception_ptr> errors(actions.size());
  std::vector<std::jthread> threads;  // jthread: joined even if a later thread cannot be made
  for (std::size_t i = 0; i < actions.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        actions[i]();
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  threads.clear();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace stretto::c

using namespace stretto::c;

strettoResult_t strettoGroupStart() {
  ++group.depth;
  return strettoSuccess;
}

strettoResult_t strettoGroupEnd() {
  return answer([] {
    require_usage(in_group(), "strettoGroupEnd was called without strettoGroupStart.");
    if (--group.depth > 0) return;
    end(std::exchange(group, {}));
  });
}
