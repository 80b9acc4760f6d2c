#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "server/live_ranks.hpp"
#include "server/served_layout.hpp"
#include "server/server_side.hpp"
#include "server/state_door.hpp"
#include "server/worker/worker_side.hpp"
#include "stretto/device.hpp"
#include "stretto/server.hpp"

namespace stretto {

// A rank's side of a server set, and how its calls end, or go on behind a loss.
struct ServerSet::State {
  // Collective.
  State(const Communicator& ranks, std::vector<ServedTable> tables, const Options& options);

  WorkerSide& as_worker(const char* what);  // throws Error(invalid_argument) if this rank cannot do that

  // The caller's function. What it throws is no loss of a rank, whatever it says, and ends the set.
  template <class Result, class... Arguments>
  std::function<Result(Arguments...)> ending(std::function<Result(Arguments...)> function) {
    if (!function) return function;
    return [this, function = std::move(function)](Arguments... arguments) {
      try {
        return function(arguments...);
      } catch (...) {
        end = std::current_exception();
        throw;
      }
    };
  }
  std::vector<ServedTable> ending(std::vector<ServedTable> tables);

  // Held during a call. The caller's functions may call the set again.
  std::unique_lock<std::recursive_mutex> call() { return std::unique_lock(calls); }

  // Calls body(), and again when ranks have been lost and the others go on.
  template <class Body>
  void through_losses(Body body) {
    const OnDevice host(Device::cpu);  // tables lie there, whatever the program's device
    std::optional<Error> failure;
    while (true) {
      if (end) std::rethrow_exception(end);
      try {
        if (failure) go_on(*failure);
        return body();
      } catch (const ThrownByFilter& its) {
        std::rethrow_exception(its.thrown);
      } catch (const Error& error) {
        if (end || !error.is_of_another_rank()) throw;
        if (!layout.goes_on()) throw_naming_parts(error);
        if (is_over_by_now()) return;
        failure = error;
      }
    }
  }
  Pending begin(std::uint64_t request);
  std::uint64_t request_of(const Pending& pending) const;  // throws Error(invalid_argument) for one of another set
  WorkerSide::Terms terms_of(const Task& task) const;
  // As through_losses(), and then calls the functions (when_done()) of pushes and pulls that are done, also if body()
  // throws. If both throw, the caller gets body()'s error: it may be a refusal, which is told once.
  template <class Body>
  void calling_back(Body body) {
    std::exception_ptr failure;
    const auto keep_first = [&](const auto& part) {
      try {
        part();
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    };
    keep_first([&] { through_losses(body); });
    keep_first([&] { call_back(); });
    if (failure) std::rethrow_exception(failure);
  }
  void call_back();

  void attend(const std::stop_token& stop);
  bool is_over_by_now();
  int first_port() const;  // of the servers' doors; 0: there are none
  void open_door(int first_port);
  void go_on(const Error& failure);
  void meet(const Error& failure);
  void check_holdings(const std::map<int, std::vector<std::int64_t>>& holdings);
  [[noreturn]] void throw_naming_parts(const Error& error) const;

  std::uint64_t set_number;  // of this one in the process, from 1 on
  std::exception_ptr end;    // why this rank can no longer go on; every later call throws it
  ServedLayout layout;
  LiveRanks live;
  std::optional<WorkerSide> worker;  // this rank is one of both
  std::optional<ServerSide> server;
  std::optional<StateDoor> door;  // of a server
  bool may_go_on = true;          // else the error of go_on() is the end
  std::recursive_mutex calls;     // of all but the door, between a call and the attendant
  std::jthread attendant;         // last: it uses the others
};

}  // namespace stretto
