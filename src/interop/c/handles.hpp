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
#include "stretto/stretto.h"

// What stands behind the handles of the C interface, and how a call finds it.
namespace stretto::c {

struct Failure {
  strettoResult_t result = strettoSuccess;
  std::string sentence;
};

// For a call that is wrong where it stands, whatever its values.
class InvalidUsage : public Error {
 public:
  explicit InvalidUsage(const std::string& sentence) : Error(ErrorCode::invalid_argument, sentence) {}
};
template <class... Args>
void require_usage(bool condition, fmt::format_string<Args...> sentence, Args&&... args) {
  if (!condition) throw InvalidUsage(fmt::format(sentence, std::forward<Args>(args)...));
}

// For calls that are about CUDA alone.
class CudaFailure : public Error {
 public:
  explicit CudaFailure(const Error& error) : Error(error) {}
};

// Those that are alive. Whoever finds one shares it, so that another thread may destroy the handle meanwhile.
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

// Ranks that one thread made together. It also destroys them one after the other, and the first would wait for the others:
// so all of them go when the last is destroyed.
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

// A registration, of either kind: keeps the memory.
struct strettoWindow {
  std::shared_ptr<std::byte> memory;
};

struct strettoStream {
  explicit strettoStream(stretto::Stream its_stream) : stream(std::move(its_stream)) {}

  const stretto::Stream stream;
  std::mutex mutex;    // guards what follows
  stretto::Work last;  // that was put there
};

struct strettoComm {
  strettoComm(stretto::Communicator its_ranks, std::shared_ptr<stretto::c::Clique> its_clique)
      : ranks(std::move(its_ranks)), clique(std::move(its_clique)) {
    if (clique) clique->join();
  }
  // Where this was the rank's last communicator: waits for the other ranks' ends.
  ~strettoComm() {
    if (clique) clique->leave(std::move(ranks));
  }
  strettoComm(const strettoComm&) = delete;
  strettoComm& operator=(const strettoComm&) = delete;

  stretto::Communicator ranks;
  const std::shared_ptr<stretto::c::Clique> clique;  // or none

  std::mutex mutex;  // guards what follows
  bool finalized = false;
  std::string last_error;
  std::deque<stretto::Work> under_way;  // in streams
  stretto::c::Failure async_error;      // of the first of these that ended badly
  struct Reduction {
    strettoDataType_t datatype;
    double factor;
  };
  std::map<int, Reduction> reductions;                                           // by their strettoRedOp_t
  std::map<const void*, std::shared_ptr<strettoWindow>> registrations, windows;  // by their handles
};

namespace stretto::c {

Handles<strettoComm>& communicators();
Handles<strettoStream>& streams();

// Of a handle that may be NULL: nothing then, and the calling thread.
std::shared_ptr<strettoStream> find_stream(strettoStream_t handle);
inline Stream stream_of(const std::shared_ptr<strettoStream>& found) { return found ? found->stream : Stream::inline_(); }

// The last operation that was put there; done, if there was none.
Work last_of(strettoStream& stream);

// Operations are possible only then.
void require_open(strettoComm& comm);
// Keeps an eye on what is in a stream.
void watch(strettoComm& comm, const std::shared_ptr<strettoStream>& stream, const Work& work);
// Forgets what is done and keeps the first error; all: waits for what is not.
void collect_ended(strettoComm& comm, bool all);
void throw_async_error(strettoComm& comm);

}  // namespace stretto::c
