#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "core/fail.hpp"
#include "server/parts/push_pull_plan.hpp"
#include "server/server_set_state.hpp"

namespace stretto {

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

ServerSet::Pending ServerSet::push(int table, const Tensor& pushed, const Task& task) {
  const auto call = state_->call();
  WorkerSide& worker = state_->as_worker("push");
  return state_->begin(worker.add(table, &pushed, nullptr, state_->terms_of(task)));
}

ServerSet::Pending ServerSet::pull(int table, const Tensor& values, const Task& task) {
  const auto call = state_->call();
  WorkerSide& worker = state_->as_worker("pull");
  return state_->begin(worker.add(table, nullptr, &values, state_->terms_of(task)));
}

ServerSet::Pending ServerSet::push_pull(int table, const Tensor& pushed, const Tensor& values, const Task& task) {
  const auto call = state_->call();
  WorkerSide& worker = state_->as_worker("push and pull");
  return state_->begin(worker.add(table, &pushed, &values, state_->terms_of(task)));
}

ServerSet::Pending ServerSet::push(int table, const std::vector<std::uint64_t>& keys, const Tensor& rows,
                                   const std::vector<std::int64_t>& lengths, const Task& task) {
  const auto call = state_->call();
  WorkerSide& worker = state_->as_worker("push");
  return state_->begin(worker.add(table, {keys, rows, lengths}, push_part, state_->terms_of(task)));
}

ServerSet::Pending ServerSet::pull(int table, const std::vector<std::uint64_t>& keys, const Tensor& rows,
                                   const std::vector<std::int64_t>& lengths, const Task& task) {
  const auto call = state_->call();
  WorkerSide& worker = state_->as_worker("pull");
  return state_->begin(worker.add(table, {keys, rows, lengths}, pull_part, state_->terms_of(task)));
}

void ServerSet::wait(const Pending& pending) {
  const auto call = state_->call();
  if (state_->worker) state_->calling_back([&] { state_->worker->wait(state_->request_of(pending)); });
}

void ServerSet::when_done(const Pending& pending, Done done) {
  const auto call = state_->call();
  require(done != nullptr, "A push or pull is to call nothing when it is done; give a function.");
  state_->as_worker("push and pull").when_done(state_->request_of(pending), std::move(done));
}

void ServerSet::poll() {
  const auto call = state_->call();
  WorkerSide& worker = state_->as_worker("push and pull");
  state_->calling_back([&] { worker.poll(); });
}

std::vector<std::string> ServerSet::ask(const std::string& text) {
  const auto call = state_->call();
  WorkerSide& worker = state_->as_worker("ask");
  require(state_->layout.options.spares == 0,
          "Servers with {} spares cannot be asked: a part that moves meanwhile would be in no answer, or in two.",
          state_->layout.options.spares);
  std::vector<std::string> answers;
  state_->calling_back([&] { answers = worker.ask(text); });
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
    // A function may begin a push or pull, which must be done before the goodbye.
    do state_->calling_back([&] { worker.finish_all(); });
    while (worker.has_open());
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
