#include "server/server_set_state.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>

#include "collectives/job/throw_together.hpp"
#include "core/fail.hpp"
#include "core/log.hpp"
#include "core/rank_list.hpp"
#include "core/setting_values.hpp"
#include "stretto/settings.hpp"

namespace stretto {
namespace {

constexpr int most_port = 65535;
constexpr std::chrono::milliseconds between_looks{20};
std::atomic<std::uint64_t> sets = 0;  // of this process, so far

}  // namespace

ServerSet::State::State(const Communicator& ranks, std::vector<ServedTable> tables, const Options& options)
    : set_number(++sets), layout(ranks, ending(std::move(tables)), options), live(ranks, layout) {
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

WorkerSide& ServerSet::State::as_worker(const char* what) {
  require(worker.has_value(), "Rank {} cannot {}: it is a server.", live.rank(), what);
  worker->require_present(what);
  return *worker;
}

std::vector<ServedTable> ServerSet::State::ending(std::vector<ServedTable> tables) {
  for (ServedTable& table : tables) {
    table.initial = ending(std::move(table.initial));
    table.initial_row = ending(std::move(table.initial_row));
    table.update.update = ending(std::move(table.update.update));
  }
  return tables;
}

ServerSet::Pending ServerSet::State::begin(std::uint64_t request) {
  through_losses([&] { worker->begin(request); });
  return {request, set_number};
}

std::uint64_t ServerSet::State::request_of(const Pending& pending) const {
  require(pending.set_ == set_number || pending.set_ == 0,
          "A push or pull of another server set is given; give one of this.");
  return pending.request_;
}

WorkerSide::Terms ServerSet::State::terms_of(const Task& task) const {
  WorkerSide::Terms terms{{}, task.consistency};
  for (const Pending& pending : task.after) terms.after.push_back(request_of(pending));
  return terms;
}

// A function may call the set again, which then calls those of what is done by then. What it begins is for later calls: one
// that pushes again each time would else keep poll() for ever.
void ServerSet::State::call_back() {
  const std::uint64_t first_later = worker ? worker->next_request() : 0;
  while (worker && !end && live.is_connected()) {
    const std::optional<WorkerSide::Finished> next = worker->next_finished(first_later);
    if (!next) return;
    const auto& [refusals, thrown] = next->outcome;
    const bool is_refused = !thrown && !refusals.empty();
    next->done(is_refused ? std::make_exception_ptr(Error(ErrorCode::invalid_argument, refusals)) : thrown);
  }
}

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

}  // namespace stretto
