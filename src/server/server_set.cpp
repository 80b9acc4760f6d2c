#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/job/throw_together.hpp"
#include "core/fail.hpp"
#include "core/log.hpp"
#include "core/rank_list.hpp"
#include "core/setting_values.hpp"
#include "server/live_ranks.hpp"
#include "server/parts/push_pull_plan.hpp"
#include "server/served_layout.hpp"
#include "server/server_side.hpp"
#include "server/state_door.hpp"
#include "server/worker_side.hpp"
#include "stretto/device.hpp"
#include "stretto/server.hpp"
#include "stretto/settings.hpp"

namespace stretto {
namespace {

constexpr int most_port = 65535;
constexpr std::chrono::milliseconds between_looks{20};

}  // namespace

struct ServerSet::State {
  State(const Communicator& ranks, std::vector<ServedTable> tables, const Options& options)
      : layout(ranks, ending(std::move(tables)), options), live(ranks, layout) {
    const OnDevice host(Device::cpu);
    throw_together(ranks, "begin its part of the server set", [&] {
      const int port = first_port();
      if (layout.is_server(live.rank())) {
        server.emplace(layout, live);
        if (port != 0) open_door(port);
      } else {
        worker.emplace(layout, live);
      }
    });
  }

  WorkerSide& as_worker(const char* what) {
    require(worker.has_value(), "Rank {} cannot {}: it is a server.", live.rank(), what);
    worker->require_present(what);
    return *worker;
  }

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
  std::vector<ServedTable> ending(std::vector<ServedTable> tables) {
    for (ServedTable& table : tables) {
      table.initial = ending(std::move(table.initial));
      table.initial_row = ending(std::move(table.initial_row));
      table.update.update = ending(std::move(table.update.update));
    }
    return tables;
  }

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
      } catch (const Error& error) {
        if (end || !error.is_of_another_rank()) throw;
        if (!layout.goes_on()) throw_naming_parts(error);
        if (is_over_by_now()) return;
        failure = error;
      }
    }
  }
  void send(std::uint64_t request) {
    through_losses([&, is_sent = false]() mutable {
      if (!std::exchange(is_sent, true)) worker->send(request);
    });
  }

  void attend(const std::stop_token& stop);
  bool is_over_by_now();
  int first_port() const;  // of the servers' doors; 0: there are none
  void open_door(int first_port);
  void go_on(const Error& failure);
  void meet(const Error& failure);
  void check_holdings(const std::map<int, std::vector<std::int64_t>>& holdings);
  [[noreturn]] void throw_naming_parts(const Error& error) const;

  std::exception_ptr end;  // why this rank can no longer go on; every later call throws it
  ServedLayout layout;
  LiveRanks live;
  std::optional<WorkerSide> worker;  // this rank is one of both
  std::optional<ServerSide> server;
  std::optional<StateDoor> door;  // of a server
  bool may_go_on = true;          // else the error of go_on() is the end
  std::recursive_mutex calls;     // of all but the door, between a call and the attendant
  std::jthread attendant;         // last: it uses the others
};

// Between calls, goes on with the others behind a loss; otherwise they would wait for this rank's next call.
void ServerSet::State::attend(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::this_thread::sleep_for(between_looks);
    const std::unique_lock between_calls(calls, std::try_to_lock);
    if (!between_calls) continue;
    if (end) return;
    try {
      through_losses([&] { live.communicator().job().check_ranks(); });
    } catch (...) {
      if (!end) end = std::current_exception();
    }
  }
}

// A loss behind the last goodbye does not matter, also if this rank has not looked at the goodbye yet.
bool ServerSet::State::is_over_by_now() {
  const auto is_over = [&] { return worker ? worker->is_over() : server->is_over(); };
  if (is_over() || !live.is_connected()) return is_over();
  try {
    if (worker) worker->take_what_has_come();
    if (server) server->take_what_has_come();
  } catch (const Error& error) {
    if (!error.is_of_another_rank()) throw;
  }
  return is_over();
}

int ServerSet::State::first_port() const {
  const auto port = static_cast<int>(number_setting("STRETTO_SERVERS_PORT"));
  const int last = port + layout.options.servers - 1;
  require(port == 0 || last <= most_port,
          "STRETTO_SERVERS_PORT={} gives the last of {} servers port {}, and the last port is {}; give at most {}.", port,
          layout.options.servers, last, most_port, most_port + 1 - layout.options.servers);
  return port;
}

void ServerSet::State::open_door(int first_port) {
  door.emplace(place_of_door(first_port + live.rank() - layout.workers), introduce(live.rank(), live.size(), "servers"),
               [this] { return server->state(); });
}

// Fails if more ranks are lost meanwhile, and must then be called again. Any other failure is the end.
void ServerSet::State::go_on(const Error& failure) {
  try {
    meet(failure);
  } catch (const Error& error) {
    if (!may_go_on || !error.is_of_another_rank()) end = std::current_exception();
    throw;
  } catch (...) {
    end = std::current_exception();
    throw;
  }
}

// The ranks that are left meet, learn which server has which parts, and send again what may have been lost on its way.
void ServerSet::State::meet(const Error& failure) {
  const int before = live.size();
  const std::string reason = live.with_own_number(failure);
  may_go_on = false;  // a rank that the others have left behind cannot come back
  live.shrink();
  if (live.size() == before) throw failure;  // nobody is lost: it would come again
  may_go_on = true;
  live.open();
  const std::vector<int> lost = live.lost();
  if (live.is_first()) log().warn("The servers go on without {} of {}: {}", rank_list(lost), layout.ranks, reason);
  const std::vector<std::int64_t> mine =
      server ? server->holdings() : std::vector<std::int64_t>(static_cast<std::size_t>(layout.all_parts()));
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(live.size()));
  live.communicator().all_gather(mine.data(), all.data(), std::ssize(mine), DType::i64, Stream::inline_()).wait();
  std::map<int, std::vector<std::int64_t>> holdings;
  for (int number = 0; number < live.size(); ++number) {
    const auto begin = all.begin() + number * std::ssize(mine);
    holdings[live.rank_of(number)] = {begin, begin + std::ssize(mine)};
  }
  check_holdings(holdings);
  if (server) {
    server->resume(holdings);
  } else {
    worker->resume();
  }
}

void ServerSet::State::check_holdings(const std::map<int, std::vector<std::int64_t>>& holdings) {
  std::vector<ServedLayout::PartKey> nowhere;
  std::size_t number = 0;
  for (std::size_t t = 0; t < layout.tables.size(); ++t) {
    for (std::size_t p = 0; p < layout.tables[t].parts.size(); ++p, ++number) {
      if (std::ranges::none_of(holdings, [&](const auto& of_rank) { return of_rank.second[number] != 0; })) {
        nowhere.emplace_back(t, p);
      }
    }
  }
  if (nowhere.empty()) return;
  may_go_on = false;
  fail(ErrorCode::peer_lost, "Lost with {}: {}, of which no other server has a copy.", rank_list(live.lost()),
       layout.name_parts(nowhere));
}

void ServerSet::State::throw_naming_parts(const Error& error) const {
  const std::optional<int> lost = live.lost_by(error);
  const std::string sentence = live.with_own_number(error);
  std::vector<ServedLayout::PartKey> parts;
  for (std::size_t t = 0; t < layout.tables.size(); ++t) {
    for (std::size_t p = 0; p < layout.tables[t].parts.size(); ++p) {
      const int owner = worker ? worker->server_of(t, p) : server->server_of({t, p});
      if (owner == lost) parts.emplace_back(t, p);
    }
  }
  if (parts.empty()) throw Error(error.code(), sentence);
  throw Error(error.code(), fmt::format("{} Lost with this server: {}. With copies, others would go on.", sentence,
                                        layout.name_parts(parts)));
}

ServerSet::ServerSet(const Communicator& ranks, std::vector<ServedTable> tables, const Options& options)
    : state_(std::make_unique<State>(ranks, std::move(tables), options)) {}
ServerSet::~ServerSet() = default;

bool ServerSet::is_server() const { return state_->server.has_value(); }
int ServerSet::workers() const { return state_->layout.workers; }

Communicator ServerSet::ranks() const {
  const auto call = state_->call();
  return state_->live.communicator();
}

void ServerSet::attend() {
  if (!state_->layout.goes_on() || state_->attendant.joinable()) return;
  state_->attendant = std::jthread([state = state_.get()](const std::stop_token& stop) { state->attend(stop); });
}

int ServerSet::server_of(int table, std::int64_t element) const {
  const auto call = state_->call();
  const ServedLayout::Table& its = state_->layout.table(table);
  require(element >= 0 && element < its.served.elements, "Table {} has no element {}.", its.served.name, element);
  const auto behind = std::ranges::upper_bound(its.parts, element, {}, &ServedLayout::Part::first);
  const auto part = static_cast<std::size_t>(std::prev(behind) - its.parts.begin());
  if (state_->worker) return state_->worker->server_of(static_cast<std::size_t>(table), part);
  return state_->server->server_of({static_cast<std::size_t>(table), part});
}

Plan ServerSet::push_pull_plan(int table, int server) const {
  const auto call = state_->call();
  const ServedLayout& layout = state_->layout;
  const ServedLayout::Table& its = layout.table(table);
  const int rank = state_->live.rank();
  require(!its.served.is_sparse(), "Table {} is sparse, and no plan has its keys.", its.served.name);
  require(layout.is_server(server) && server < layout.ranks, "Rank {} is no server; the {} servers begin with rank {}.",
          server, layout.options.servers, layout.workers);
  require(!is_server() || rank == server, "Server {} takes no part in what workers push to server {}.", rank, server);
  std::vector<std::int64_t> parts;
  for (std::size_t part = 0; part < its.parts.size(); ++part) {
    const ServedLayout::PartKey key{static_cast<std::size_t>(table), part};
    const bool is_its = state_->worker ? state_->worker->server_of(key.first, part) == server : state_->server->serves(key);
    if (is_its) parts.push_back(its.parts[part].count);
  }
  return stretto::push_pull_plan(std::min(rank, layout.workers), layout.workers, parts);
}

void ServerSet::serve(const Answer& answer) {
  const auto call = state_->call();
  require(is_server(), "Rank {} is a worker and serves nothing.", state_->live.rank());
  const Answer its = state_->ending(answer);
  try {
    state_->through_losses([&] { state_->server->serve(its); });
  } catch (const Error& error) {  // a message was taken in part, and the server cannot go on behind it
    if (!state_->end && !error.is_of_another_rank()) state_->end = std::current_exception();
    throw;
  }
}

void ServerSet::join() {
  const auto call = state_->call();
  require(is_server() && state_->layout.is_spare(state_->live.rank()), "Rank {} is no spare server, and cannot join.",
          state_->live.rank());
  state_->through_losses([&] { state_->server->join(); });
}

ServerSet::Pending ServerSet::push(int table, const Tensor& pushed) {
  const auto call = state_->call();
  WorkerSide& worker = state_->as_worker("push");
  state_->through_losses([&] { worker.finish_pulls_before_push(table); });
  const Pending pending(worker.begin(table, &pushed, nullptr));
  state_->send(pending.request_);
  return pending;
}

ServerSet::Pending ServerSet::pull(int table, const Tensor& values) {
  const auto call = state_->call();
  const Pending pending(state_->as_worker("pull").begin(table, nullptr, &values));
  state_->send(pending.request_);
  return pending;
}

ServerSet::Pending ServerSet::pull_settled(int table, const Tensor& values) {
  const auto call = state_->call();
  const Pending pending(state_->as_worker("pull").begin(table, nullptr, &values, true));
  state_->send(pending.request_);
  return pending;
}

ServerSet::Pending ServerSet::push_pull(int table, const Tensor& pushed, const Tensor& values) {
  const auto call = state_->call();
  WorkerSide& worker = state_->as_worker("push and pull");
  state_->through_losses([&] { worker.finish_pulls_before_push(table); });
  const Pending pending(worker.begin(table, &pushed, &values));
  state_->send(pending.request_);
  return pending;
}

ServerSet::Pending ServerSet::push(int table, const std::vector<std::uint64_t>& keys, const Tensor& rows,
                                   const std::vector<std::int64_t>& lengths) {
  const auto call = state_->call();
  WorkerSide& worker = state_->as_worker("push");
  state_->through_losses([&] { worker.finish_pulls_before_push(table); });
  const Pending pending(worker.begin(table, {keys, rows, lengths}, push_part));
  state_->send(pending.request_);
  return pending;
}

ServerSet::Pending ServerSet::pull(int table, const std::vector<std::uint64_t>& keys, const Tensor& rows,
                                   const std::vector<std::int64_t>& lengths) {
  const auto call = state_->call();
  const Pending pending(state_->as_worker("pull").begin(table, {keys, rows, lengths}, pull_part));
  state_->send(pending.request_);
  return pending;
}

void ServerSet::wait(const Pending& pending) {
  const auto call = state_->call();
  if (state_->worker) state_->through_losses([&] { state_->worker->wait(pending.request_); });
}

std::vector<std::string> ServerSet::ask(const std::string& text) {
  const auto call = state_->call();
  WorkerSide& worker = state_->as_worker("ask");
  require(state_->layout.options.spares == 0,
          "Servers with {} spares cannot be asked: a part that moves meanwhile would be in no answer, or in two.",
          state_->layout.options.spares);
  std::vector<std::string> answers;
  state_->through_losses([&] { answers = worker.ask(text); });
  return answers;
}

std::int64_t ServerSet::version(int table) const {
  const auto call = state_->call();
  state_->layout.table(table);
  return state_->worker ? state_->worker->version(table) : 0;
}

void ServerSet::leave() {
  {
    const auto call = state_->call();
    WorkerSide& worker = state_->as_worker("leave");
    state_->through_losses([&] { worker.leave(); });
    worker.note_left();
  }
  state_->attendant = {};  // behind the last goodbye a loss does not matter
}

std::string ServerSet::state() const {
  require(is_server(), "Rank {} is a worker and has no parts.", state_->live.rank());
  return state_->server->state();
}

std::string server_state(const std::string& host, int port, double seconds) {
  return state_behind(place_of_door(port, host, seconds));
}

ServerSet::Traffic ServerSet::traffic() const {
  const auto call = state_->call();
  const Mailbox::Traffic its = state_->live.traffic();
  return {its.payload_sent, its.heads_sent, its.messages_sent};
}

}  // namespace stretto
