#pragma once
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/fail.hpp"
#include "stretto/communicator.hpp"
#include "stretto/error.hpp"
#include "stretto/move.hpp"
#include "stretto/stretto.h"

// The objects behind the handles of the C interface, and the tables in which a call finds them.
namespace stretto::c {

struct Failure {
  strettoResult_t result = strettoSuccess;
  std::string sentence;
};

// The call is wrong at this place, whatever its arguments.
class InvalidUsage : public Error {
 public:
  explicit InvalidUsage(const std::string& sentence) : Error(ErrorCode::invalid_argument, sentence) {}
};
template <class... Args>
void require_usage(bool condition, fmt::format_string<Args...> sentence, Args&&... args) {
  if (!condition) throw InvalidUsage(fmt::format(sentence, std::forward<Args>(args)...));
}

// A failure of CUDA in a call that concerns CUDA alone.
class CudaFailure : public Error {
 public:
  explicit CudaFailure(const Error& error) : Error(error) {}
};

// The objects whose handles are valid. find() shares ownership, so another thread may destroy the handle while a call uses
// the object.
template <class Object>
class Handles {
 public:
  explicit Handles(const char* what) : what_(what) {}

  Object* add(const std::shared_ptr<Object>& object) {
    const std::lock_guard lock(mutex_);
    alive_.emplace(object.get(), object);
    return object.get();
  }
  std::shared_ptr<Object> find(const Object* handle) {
    const std::lock_guard lock(mutex_);
    return place_of(handle)->second;
  }
  std::shared_ptr<Object> remove(const Object* handle) {
    const std::lock_guard lock(mutex_);
    return std::move(alive_.extract(place_of(handle)).mapped());
  }

 private:
  auto place_of(const Object* handle) {
    const auto place = alive_.find(handle);
    require_usage(place != alive_.end(), "There is no {} {}: it was never made, or has been destroyed.", what_,
                  static_cast<const void*>(handle));
    return place;
  }

  const char* what_;
  std::mutex mutex_;
  std::unordered_map<const Object*, std::shared_ptr<Object>> alive_;
};

// The ranks of one communicator that one thread made together. That thread also destroys them one after the other, and the
// end of the first rank would block until the others end. So no rank ends before the last handle is destroyed; then all end
// in parallel.
class Clique {
 public:
  void join() {
    const std::lock_guard lock(mutex_);
    ++handles_;
  }
  void leave(Communicator communicator);

 private:
  std::mutex mutex_;
  int handles_ = 0;
  std::vector<Communicator> leaving_;
};

}  // namespace stretto::c

// A registration of a buffer or a window. It keeps the memory allocated.
struct strettoWindow {
  std::shared_ptr<std::byte> memory;
};

struct strettoMove {
  explicit strettoMove(stretto::Move its_move) : move(std::move(its_move)) {}

  const stretto::Move move;
};

struct strettoStream {
  explicit strettoStream(stretto::Stream its_stream) : stream(std::move(its_stream)) {}

  const stretto::Stream stream;
  std::mutex mutex;    // guards `last`
  stretto::Work last;  // the operation that was put into the stream last
};

struct strettoComm {
  strettoComm(stretto::Communicator its_ranks, std::shared_ptr<stretto::c::Clique> its_clique)
      : ranks(std::move(its_ranks)), clique(std::move(its_clique)) {
    if (clique) clique->join();
  }
  // The end of a rank's last communicator blocks until the other ranks end theirs.
  ~strettoComm() {
    moves.clear();
    if (clique) clique->leave(std::move(ranks));
  }
  strettoComm(const strettoComm&) = delete;
  strettoComm& operator=(const strettoComm&) = delete;

  stretto::Communicator ranks;
  const std::shared_ptr<stretto::c::Clique> clique;  // null for a rank that was made alone

  std::mutex mutex;  // guards the members below
  bool finalized = false;
  std::string last_error;
  std::deque<stretto::Work> under_way;  // operations in streams, in flight
  stretto::c::Failure async_error;      // the first error among these operations
  struct Reduction {
    strettoDataType_t datatype;
    double factor;
  };
  std::map<int, Reduction> reductions;                                           // by strettoRedOp_t
  std::map<const void*, std::shared_ptr<strettoWindow>> registrations, windows;  // by handle
  std::map<const void*, std::shared_ptr<strettoMove>> moves;                     // by handle
};

namespace stretto::c {

Handles<strettoComm>& communicators();
Handles<strettoStream>& streams();

// Returns null for a NULL handle, which stands for the calling thread.
std::shared_ptr<strettoStream> find_stream(strettoStream_t handle);
inline Stream stream_of(const std::shared_ptr<strettoStream>& found) { return found ? found->stream : Stream::inline_(); }

// Returns the last operation that was put into `stream`; a Work that is done if there was none.
Work last_of(strettoStream& stream);

// Throws after strettoCommFinalize.
void require_open(strettoComm& comm);
// Records an operation in flight, for its stream and its communicator. Does nothing without a stream.
void watch(strettoComm& comm, const std::shared_ptr<strettoStream>& stream, const Work& work);
// Removes operations that have ended and keeps the first error. all: first blocks until every operation has ended.
void collect_ended(strettoComm& comm, bool all);
void throw_async_error(strettoComm& comm);

}  // namespace stretto::c
