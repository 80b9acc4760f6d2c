// MPI's collective calls, as the program calls them.
#include "describe.hpp"
#include "mpi_is_faster.hpp"

namespace stretto::mpi_door {
namespace {

// Returns the communicator of a call that is to be served, after describe(on, task) has filled the task. Otherwise returns
// null and counts the call as forwarded.
template <class Describe>
Served* examined(Kind kind, Form form, MPI_Comm comm, Task& task, Describe describe) {
  Door& self = door();
  Served* const on = self.find(comm);
  if (on == nullptr) {
    if (self.is_open()) self.report.add(kind, form, self.why_unserved(comm));
    return nullptr;
  }
  const bool may_wait = form != Form::non_blocking;
  Outcome outcome = may_wait || is_served_without_blocking(kind) ? describe(*on, task) : Outcome::mpi_is_faster;
  if (outcome == Outcome::served && !may_wait && mpi_is_faster(task.call, on->size)) outcome = Outcome::mpi_is_faster;
  if (outcome == Outcome::served) task.keep_outputs_apart();
  self.report.add(kind, form, outcome);
  return outcome == Outcome::served ? on : nullptr;
}

template <class Describe, class Forward>
int perform(Kind kind, MPI_Comm comm, Describe describe, Forward forward) {
  Task task;
  Served* const on = examined(kind, Form::blocking, comm, task, describe);
  if (on == nullptr) return forward();
  return guarded([&] {
    task.pack();
    task.start(on->blocking, Stream::inline_());
    task.unpack();
  });
}

// begin(owner, task) starts a call that is served.
template <class Describe, class Begin, class Forward>
int begin_or_forward(Kind kind, Form form, MPI_Comm comm, Describe describe, Begin begin, Forward forward) {
  Task task;
  Served* const on = examined(kind, form, comm, task, describe);
  if (on == nullptr) return forward();
  return guarded([&] { begin(door().owner_of(on), std::make_unique<Task>(std::move(task))); });
}

// For calls that are always forwarded.
void count_forwarded(Kind kind, Form form) {
  if (door().is_open()) door().report.add(kind, form, Outcome::unserved);
}

}  // namespace
}  // namespace stretto::mpi_door

using namespace stretto::mpi_door;  // NOLINT(google-build-using-namespace): the functions below have MPI's names, in no
                                    // namespace

#define STRETTO_BLOCKING(name, lower, parameters, arguments)                                                               \
  int MPI_##name(STRETTO_LIST parameters MPI_Comm comm) {                                                                  \
    return perform(                                                                                                        \
        Kind::name, comm, [&](const Served& on, Task& task) { return describe_##lower(STRETTO_LIST arguments on, task); }, \
        [&] { return PMPI_##name(STRETTO_LIST arguments comm); });                                                         \
  }                                                                                                                        \
  int MPI_I##lower(STRETTO_LIST parameters MPI_Comm comm, MPI_Request* request) {                                          \
    return begin_or_forward(                                                                                               \
        Kind::name, Form::non_blocking, comm,                                                                              \
        [&](const Served& on, Task& task) { return describe_##lower(STRETTO_LIST arguments on, task); },                   \
        [&](auto on, auto task) { door().requests.start(std::move(on), std::move(task), request); },                       \
        [&] { return PMPI_I##lower(STRETTO_LIST arguments comm, request); });                                              \
  }
STRETTO_SERVED_CALLS(STRETTO_BLOCKING)

#define STRETTO_FORWARD(name, lower, parameters, arguments)                       \
  int MPI_##name(STRETTO_LIST parameters MPI_Comm comm) {                         \
    count_forwarded(Kind::name, Form::blocking);                                  \
    return PMPI_##name(STRETTO_LIST arguments comm);                              \
  }                                                                               \
  int MPI_I##lower(STRETTO_LIST parameters MPI_Comm comm, MPI_Request* request) { \
    count_forwarded(Kind::name, Form::non_blocking);                              \
    return PMPI_I##lower(STRETTO_LIST arguments comm, request);                   \
  }
STRETTO_FORWARDED_CALLS(STRETTO_FORWARD)

#ifdef STRETTO_HAS_PERSISTENT
#define STRETTO_PREPARE(name, lower, parameters, arguments)                                                   \
  int STRETTO_PERSISTENT(name)(STRETTO_LIST parameters MPI_Comm comm, MPI_Info info, MPI_Request * request) { \
    return begin_or_forward(                                                                                  \
        Kind::name, Form::persistent, comm,                                                                   \
        [&](const Served& on, Task& task) { return describe_##lower(STRETTO_LIST arguments on, task); },      \
        [&](auto on, auto task) { door().requests.prepare(std::move(on), std::move(task), request); },        \
        [&] { return STRETTO_PERSISTENT_OF_MPI(name)(STRETTO_LIST arguments comm, info, request); });         \
  }
STRETTO_SERVED_CALLS(STRETTO_PREPARE)

#define STRETTO_FORWARD_PERSISTENT(name, lower, parameters, arguments)                                        \
  int STRETTO_PERSISTENT(name)(STRETTO_LIST parameters MPI_Comm comm, MPI_Info info, MPI_Request * request) { \
    count_forwarded(Kind::name, Form::persistent);                                                            \
    return STRETTO_PERSISTENT_OF_MPI(name)(STRETTO_LIST arguments comm, info, request);                       \
  }
STRETTO_FORWARDED_CALLS(STRETTO_FORWARD_PERSISTENT)
#endif
