#include "interop/c/handles.hpp"

#include "interop/c/answer.hpp"
#include "interop/c/group.hpp"

namespace stretto::c {

// Never destroyed: a program may exit without destroying its handles.
Handles<strettoComm>& communicators() {
  static auto& alive = *new Handles<strettoComm>("communicator");
  return alive;
}
Handles<strettoStream>& streams() {
  static auto& alive = *new Handles<strettoStream>("stream");
  return alive;
}

std::shared_ptr<strettoStream> find_stream(strettoStream_t handle) {
  return handle == nullptr ? nullptr : streams().find(handle);
}

Work last_of(strettoStream& stream) {
  const std::lock_guard lock(stream.mutex);
  return stream.last;
}

void Clique::leave(Communicator communicator) {
  std::vector<Communicator> going;
  {
    const std::lock_guard lock(mutex_);
    leaving_.push_back(std::move(communicator));
    if (--handles_ == 0) going.swap(leaving_);
  }
  std::vector<std::function<void()>> each;
  each.reserve(going.size());
  for (Communicator& one : going) each.emplace_back([&one] { one = Communicator(); });
  side_by_side(each);
}

void require_open(strettoComm& comm) {
  const std::lock_guard lock(comm.mutex);
  require_usage(!comm.finalized, "Communicator '{}' takes no more operations: strettoCommFinalize was called.",
                comm.ranks.name());
}

void watch(strettoComm& comm, const std::shared_ptr<strettoStream>& stream, const Work& work) {
  if (!stream) return;
  {
    const std::lock_guard lock(stream->mutex);
    stream->last = work;
  }
  collect_ended(comm, false);
  const std::lock_guard lock(comm.mutex);
  comm.under_way.push_back(work);
}

void throw_async_error(strettoComm& comm) {
  const std::lock_guard lock(comm.mutex);
  if (comm.async_error.result != strettoSuccess) throw PassedOn{comm.async_error};
}

void collect_ended(strettoComm& comm, bool all) {
  while (true) {
    Work first;
    {
      const std::lock_guard lock(comm.mutex);
      if (comm.under_way.empty() || (!all && !comm.under_way.front().done())) return;
      first = comm.under_way.front();
      comm.under_way.pop_front();
    }
    try {
      first.wait();
    } catch (...) {
      const Failure failure = failure_of(std::current_exception());
      const std::lock_guard lock(comm.mutex);
      if (comm.async_error.result != strettoSuccess) continue;
      comm.async_error = failure;
      comm.last_error = failure.sentence;
    }
  }
}

}  // namespace stretto::c
